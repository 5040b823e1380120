"""Tables and figures of measurements. Needs the extra `report` (rich and matplotlib)."""
