"""HTTP: the dialects speak ``neutral`` values, ``service`` answers those, ``app`` puts it all together."""
