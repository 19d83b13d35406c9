"""Words of NKI without state: types, enumerations, memory regions, layouts, errors."""
