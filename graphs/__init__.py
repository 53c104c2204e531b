from kernels.source_stamps import stamps

BEFORE_IMPORT = stamps(__path__[0], "cpu_")  # see kernels/__init__.py
