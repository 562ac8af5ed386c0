"""Page templates (Jinja, always escaped) of the report site."""
