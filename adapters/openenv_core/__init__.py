"""The import name before ``openenv.core``; kept for packages that still use it."""

import warnings

warnings.warn("openenv_core is now openenv.core; import that instead", DeprecationWarning, stacklevel=2)
