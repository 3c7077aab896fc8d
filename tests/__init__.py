"""Makes `tests` ours: gpuhunt's wheel brings a package of that name, which would win over a folder without this file."""
