"""What a launch is modelled to take, for people: tables, traces, pictures."""
