"""Examples of the synthetic click log, made on the device that trains."""
