"""The guard: a small process around every role that ends the machine when it must."""
