"""From runs to tables: statistics, rounds that other programs have disturbed, warnings."""
