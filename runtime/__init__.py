"""Settings (the one reader of the environment) and the process's resources built from them."""
