"""Files are streamed: what was read is not held."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from outsize.data.encoding.bad_rows import BadRows
from outsize.data.encoding.sources import read_chunks
from outsize.data.graphs.node_files import NodeFile


def test_a_parquet_file_is_not_held_in_memory_while_it_is_read(tmp_path):
    path = tmp_path / "long.parquet"
    numbers = np.random.default_rng(0).integers(0, 1 << 62, 1_000_000)
    pq.write_table(pa.table({"id": numbers}), path, row_group_size=50_000, compression="none")
    before, most, num_rows = pa.total_allocated_bytes(), 0, 0
    for chunk in read_chunks([path], ("id",), NodeFile((str(path),)), BadRows()):
        num_rows += chunk.num_rows
        del chunk
        most = max(most, pa.total_allocated_bytes() - before)
    assert num_rows == 1_000_000
    assert most < 3_000_000  # of 8,000,000
