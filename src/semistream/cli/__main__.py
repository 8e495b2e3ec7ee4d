"""python -m semistream.cli"""

from . import main

raise SystemExit(main())
