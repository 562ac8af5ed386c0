"""Style sheets and scripts that the report site carries with it."""
