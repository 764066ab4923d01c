# Third-party packages, all from the distribution. Each has one door (docs/architecture.md).
find_package(Threads REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(GTest REQUIRED)
find_package(benchmark CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(RocksDB CONFIG REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)
pkg_check_modules(LIBJWT REQUIRED IMPORTED_TARGET libjwt)
pkg_check_modules(URING REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)

find_package(Protobuf REQUIRED)               # module mode: Debian ships no config file
find_package(gRPC CONFIG REQUIRED)
if(KVARVE_SANITIZE AND TARGET re2::re2)  # says -pthread, with which the precompiled headers, made without, are not used
  set_property(TARGET re2::re2 PROPERTY INTERFACE_COMPILE_OPTIONS "")
endif()
get_target_property(KVARVE_GRPC_PLUGIN gRPC::grpc_cpp_plugin LOCATION)
find_package(yaml-cpp CONFIG REQUIRED)
if(NOT TARGET yaml-cpp::yaml-cpp)            # its name since 0.8
  add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()

# For ThreadSanitizer: the packages are not instrumented. gRPC's part of the core has a list of suppressions (kv_races_beside_grpc).
option(KVARVE_CORE_ONLY "Build only the storage, the two planes and their tests: no daemon, prometheus-cpp, RocksDB's tests, Python" OFF)
if(NOT KVARVE_CORE_ONLY)
  find_package(prometheus-cpp CONFIG REQUIRED)
  pkg_check_modules(FUSE3 REQUIRED IMPORTED_TARGET fuse3)  # a filesystem that fails, for tests
  pkg_check_modules(HTTPLIB REQUIRED IMPORTED_TARGET cpp-httplib)
endif()
