# The project in /transformer_jax, with all that `make setup` installs; docs/devices.md says whether it
# was built.
#
#   docker build -t transformer-jax .                            for CPUs
#   docker build -t transformer-jax --build-arg EXTRAS=cuda13 .  for NVIDIA GPUs (NVIDIA's container toolkit runs it)
#   docker run -v $PWD/runs:/transformer_jax/runs [--gpus all] transformer-jax quickstart
#
# CUDA's libraries come with the extra, so both have the same base image; only the driver is the host's.
FROM python:3.12-slim
ARG EXTRAS=
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /transformer_jax
COPY . .
RUN make setup EXTRAS="$EXTRAS" && rm -rf /root/.cache/pip
ENV PATH=/transformer_jax/.venv/bin:$PATH NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENTRYPOINT ["transformer_jax"]
CMD ["--help"]
