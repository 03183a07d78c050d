"""Small text runs over a package of 60 functions."""

MERGE = '''
def merge(*iterables):
    """Merge several sorted lists into one."""
    return sorted(sum(iterables, []))
'''


def write_package(folder, functions):
    """Write `functions`, the source of some, as `shelf`, and 58 functions that differ by words."""
    folder.mkdir()
    (folder / "shelf.py").write_text(functions)
    lines = []
    for number in range(58):
        lines.append(f"def take_{number}(word{number}):")
        lines.append(f'    """Take the word{number} number {number} of all."""')
        lines.append(f"    return word{number}")
    (folder / "many.py").write_text("\n".join(lines))


def functions_tree(folder, **train):
    """The run file of a text model over the packages in a folder."""
    return {
        "data": {
            "kind": "pydocs",
            "folders": [str(folder)],
            "validation": 0.2,
            "test": 0.2,
            "cache": str(folder.parent / "cache"),
        },
        "model": {"kind": "text", "dim": 64, "min_count": 1, "num_buckets": 500},
        "embeddings": {"dim": 64},
        "negatives": {"kind": "in-batch"},
        "train": {"batch_size": 16, "epochs": 2, "device": "cpu", **train},
    }
