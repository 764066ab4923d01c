"""Stand-ins for the CUDA libraries that PyPI's torch links, so that `import torch` works without a GPU.

The torch wheel needs 13 shared libraries at load time, 4 GB of wheels. vLLM for CPU calls none of them. For each this
compiles a library of a few KB that defines the symbols torch asks for, under the versions it asks for: every call
answers an error code, and the device count is 0. usage: cuda_stand_ins.py
"""
import collections
import glob
import os
import subprocess
import sys
import sysconfig
import tempfile

from elftools.elf.elffile import ELFFile

SITE = sysconfig.get_paths()["purelib"]
TORCH_LIBRARIES = os.path.join(SITE, "torch", "lib", "*.so*")
OUTPUT = os.path.join(SITE, "nvidia", "cu13", "lib")

# Which library a symbol belongs to, by prefix; the first that fits wins.
OWNERS = [
    ("cublasLt", "libcublasLt.so.13"), ("cublas", "libcublas.so.13"), ("cudnn", "libcudnn.so.9"),
    ("cusparseLt", "libcusparseLt.so.0"), ("cusparse", "libcusparse.so.12"), ("cusolver", "libcusolver.so.12"),
    ("cufft", "libcufft.so.12"), ("curand", "libcurand.so.10"), ("cuFile", "libcufile.so.0"),
    ("cupti", "libcupti.so.13"), ("nvrtc", "libnvrtc.so.13"), ("nccl", "libnccl.so.2"),
    ("nvshmem", "libnvshmem_host.so.3"), ("__cuda", "libcudart.so.13"), ("cuda", "libcudart.so.13"),
]
NO_DEVICE = 100  # cudaErrorNoDevice
BODIES = {
    "__cudaRegisterFatBinary": "static void* handle[8]; void** {n}(void* p) {{ return handle; }}",
    "__cudaPopCallConfiguration": "int {n}() {{ return 100; }}",
    "cudaGetErrorString": 'const char* {n}(int e) {{ return "no CUDA on this machine"; }}',
    "cudaGetErrorName": 'const char* {n}(int e) {{ return "cudaErrorNoDevice"; }}',
    "cudaGetLastError": "int {n}() {{ return 0; }}",
    "cudaPeekAtLastError": "int {n}() {{ return 0; }}",
    "cudaGetDeviceCount": "int {n}(int* c) {{ if (c) *c = 0; return 100; }}",
    "cudaRuntimeGetVersion": "int {n}(int* v) {{ if (v) *v = 13000; return 0; }}",
    "cudaDriverGetVersion": "int {n}(int* v) {{ if (v) *v = 0; return 0; }}",
    "cudnnGetVersion": "unsigned long {n}() {{ return 92000; }}",
    "cudnnGetCudartVersion": "unsigned long {n}() {{ return 13000; }}",
}


class Wanted:
    """What torch's libraries ask of others."""

    def __init__(self):
        self.libraries = set()
        self.undefined = {}  # symbol -> ELF type
        self.defined = set()
        self.version_of = {}  # symbol -> version
        self.versions = collections.defaultdict(set)  # library -> versions

    def scan(self, path):
        with open(path, "rb") as f:
            elf = ELFFile(f)
            for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED"):
                self.libraries.add(tag.needed)
            names = {}
            needed = elf.get_section_by_name(".gnu.version_r")
            for library, entries in needed.iter_versions() if needed else ():
                for entry in entries:
                    self.versions[library.name].add(entry.name)
                    names[entry["vna_other"]] = entry.name
            versions = elf.get_section_by_name(".gnu.version")
            for i, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
                if not symbol.name:
                    continue
                if symbol["st_shndx"] != "SHN_UNDEF":
                    self.defined.add(symbol.name)
                    continue
                self.undefined[symbol.name] = symbol["st_info"]["type"]
                index = versions.get_symbol(i)["ndx"] if versions else None
                if index in names:
                    self.version_of[symbol.name] = names[index]


def owner_of(symbol):
    if symbol.startswith("_Z"):
        return "libnvshmem_host.so.3" if "nvshmem" in symbol else None
    return next((library for prefix, library in OWNERS if symbol.startswith(prefix)), None)


def source_line(symbol, kind):
    if kind == "STT_OBJECT":
        return f"char {symbol}[4096];"
    if symbol in BODIES:
        return BODIES[symbol].format(n=symbol)
    return f"long {symbol}() {{ return {0 if symbol.startswith('__cuda') else NO_DEVICE}; }}"


def compile_stand_in(library, symbols, wanted):
    with tempfile.TemporaryDirectory() as work:
        source = os.path.join(work, "stand_in.c")
        with open(source, "w", encoding="utf-8") as f:
            f.write("\n".join(source_line(s, wanted.undefined[s]) for s in symbols) or "int nothing;")
        arguments = []
        if wanted.versions.get(library):
            script = os.path.join(work, "stand_in.map")
            with open(script, "w", encoding="utf-8") as f:
                for version in sorted(wanted.versions[library]):
                    own = "".join(f"{s}; " for s in symbols if wanted.version_of.get(s) == version)
                    f.write(f"{version} {{ global: {own}}};\n")
            arguments = [f"-Wl,--version-script,{script}"]
        subprocess.check_call(["gcc", "-w", "-shared", "-fPIC", "-O1", *arguments, f"-Wl,-soname,{library}",
                               "-o", os.path.join(OUTPUT, library), source])


def main():
    wanted = Wanted()
    for path in glob.glob(TORCH_LIBRARIES):
        wanted.scan(path)
    symbols = collections.defaultdict(list)
    for symbol in sorted(set(wanted.undefined) - wanted.defined):
        symbols[owner_of(symbol)].append(symbol)
    os.makedirs(OUTPUT, exist_ok=True)
    libraries = sorted({library for _, library in OWNERS} & wanted.libraries)
    if not libraries:
        sys.exit("cuda_stand_ins.py: this torch links no CUDA library")
    for library in libraries:
        compile_stand_in(library, symbols.get(library, []), wanted)
    print(f"{len(libraries)} stand-ins in {OUTPUT}")


if __name__ == "__main__":
    main()
