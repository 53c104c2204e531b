from kernels.source_stamps import stamps

# Taken before any kernel is imported: whoever keeps code that was compiled of these sources must know that they have not changed
# since (graphs/imported_sources.py).
BEFORE_IMPORT = stamps(__path__[0])
