"""`python -m sapwood` is the command line."""

from sapwood.cli import main

if __name__ == "__main__":
    main()
