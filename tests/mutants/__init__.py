"""Mutations of the product, one for each hazard that it guards against, and the runner that shows each test to be able to fail."""
