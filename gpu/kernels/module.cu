// Everything that ships, in one module: one file to load, one table of entries.
#include "gpu/kernels/attention.cu"
#include "gpu/kernels/keydiff.cu"
#include "gpu/kernels/movers.cu"
#include "gpu/kernels/packers.cu"
