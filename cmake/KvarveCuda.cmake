# nvcc, for the GPU kernels; nothing links CUDA. AUTO builds them when nvcc is there and says so when it is not; ON insists.
# `./dev setup` puts a pinned nvcc into build/cuda; $CUDACXX and $PATH are looked at, too.
find_program(KVARVE_SYSTEM_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH REQUIRED)
set(KVARVE_CUDA AUTO CACHE STRING "GPU kernels: ON, OFF, or AUTO (when nvcc is found)")
set_property(CACHE KVARVE_CUDA PROPERTY STRINGS AUTO ON OFF)

set(KVARVE_HAS_CUDA OFF)
if(NOT KVARVE_CUDA STREQUAL OFF AND NOT KVARVE_SANITIZE)  # sanitizers see the kernels through the shim
  file(GLOB KVARVE_OWN_NVCC ${PROJECT_SOURCE_DIR}/build/cuda/lib/python*/site-packages/nvidia/cu13/bin)
  find_program(KVARVE_NVCC nvcc HINTS ${KVARVE_OWN_NVCC} ENV CUDACXX PATHS /usr/local/cuda/bin)
  if(KVARVE_NVCC)
    set(KVARVE_HAS_CUDA ON)
  elseif(KVARVE_CUDA STREQUAL ON)
    message(FATAL_ERROR "KVARVE_CUDA=ON, but there is no nvcc: ./dev setup brings it, or set CUDACXX")
  else()
    message(STATUS "No nvcc: built without GPU kernels (./dev setup brings nvcc)")
  endif()
endif()
