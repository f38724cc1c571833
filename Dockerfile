# The two commands of the README in a container, on the CPU: the image runs the main job, and any other command of sfl-sim.
#
#     docker build -t sfl-sim . && docker run --rm -v "$PWD/reports:/work/reports" sfl-sim
#     docker run --rm --entrypoint pytest sfl-sim
FROM python:3.11-slim
WORKDIR /work
RUN pip install --no-cache-dir torch torchvision --index-url https://download.pytorch.org/whl/cpu
COPY . .
RUN pip install --no-cache-dir '.[test]'
ENTRYPOINT ["sfl-sim"]
CMD ["scenarios/heterogeneous_bw.yaml"]
