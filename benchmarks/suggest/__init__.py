"""How good the runs are that `outsize init` suggests."""
