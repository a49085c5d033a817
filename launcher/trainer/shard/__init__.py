"""A network whose operators are cut over ranks: traced, planned by `launcher.sharding`, and executed."""
