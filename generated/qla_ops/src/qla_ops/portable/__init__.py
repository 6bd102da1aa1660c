"""Every operator as a torch program: one module each, and the driver that they share."""
