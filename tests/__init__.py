"""Makes `tests` ours: gpuhunt's wheel brings a package of that name, which would win over one without this file."""
