# Skipwise for machines with an NVIDIA GPU; docs/models.md says how to build and run it.
# The wheels of torch 2.13 bring CUDA 13.0's libraries, so the image below adds only what connects them to the driver.
FROM nvidia/cuda:13.0.2-base-ubuntu24.04

# The compiler is for Triton, whose kernels are compiled on first use (training.use_liger_kernel).
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3.12 python3.12-dev python3.12-venv gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

# Give the number of your own user, so that the files of a run belong to you. Ubuntu's image has a user 1000 already.
ARG UID=1000
RUN (userdel --remove ubuntu || true) && useradd --create-home --uid ${UID} skipwise
ENV PATH=/opt/venv/bin:${PATH} PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

# Every direct dependency, and the extras qlora, sentencepiece and server, at the releases that the tests ran with; torch is
# pinned by constraints.txt. They come before the source, so that a change of the source does not install them again.
WORKDIR /opt/skipwise
COPY constraints.txt ./
RUN python3.12 -m venv /opt/venv \
    && pip install --constraint constraints.txt \
        torch \
        accelerate==1.15.0 \
        bitsandbytes==0.50.2 \
        datasets==5.2.0 \
        filelock==4.2.12 \
        huggingface_hub==2.4.0 \
        jinja2==3.1.6 \
        matplotlib==3.11.2 \
        numpy==2.4.6 \
        openai==3.57.0 \
        peft==0.21.2 \
        protobuf==7.36.2 \
        pydantic==2.14.4 \
        PyYAML==6.0.4 \
        rich==15.0.0 \
        safetensors==0.8.0 \
        scipy==1.17.1 \
        sentencepiece==0.2.3 \
        tokenizers==0.23.3 \
        transformers==5.24.0 \
        typer==0.29.2
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-deps .

# Mount the folder of your texts and runs here.
WORKDIR /data
RUN chown skipwise /data
USER skipwise
ENTRYPOINT ["skipwise"]
