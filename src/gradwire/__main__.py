"""`python -m gradwire`: the command line."""

from gradwire.cli import main

if __name__ == "__main__":
    main()
