"""`python -m outsize` is `outsize`."""

from outsize.cli import main

if __name__ == "__main__":
    main()
