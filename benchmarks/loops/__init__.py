"""Programs that the implementations are compared with. Each uses one framework and has the options of a run."""
