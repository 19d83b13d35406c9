"""``python -m nkilib``; see :mod:`nkilib.cli`."""

from nkilib.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
