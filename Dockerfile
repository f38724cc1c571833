# The two commands of the README in a container, on the CPU: the image runs the main job, and any other command of sfl-sim.
#
#     docker build -t sfl-sim --build-arg VERSION="$(git describe --tags --abbrev=0)" .
#     docker run --rm -v "$PWD/reports:/work/reports" sfl-sim
#     docker run --rm --entrypoint pytest sfl-sim
FROM python:3.11-slim
ARG VERSION=0+unknown
WORKDIR /work
RUN pip install --no-cache-dir torch==2.14.1 torchvision==0.29.1 --index-url https://download.pytorch.org/whl/cpu
COPY . .
# hadolint ignore=DL3013
RUN SETUPTOOLS_SCM_PRETEND_VERSION="$VERSION" pip install --no-cache-dir '.[test]'
ENTRYPOINT ["sfl-sim"]
CMD ["scenarios/heterogeneous_bw.yaml"]
