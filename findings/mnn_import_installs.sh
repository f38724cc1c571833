#!/bin/sh
# Importing MNN's converter in Python runs pip, which installs a package that nobody asked for.
#
# Expected: `from MNN.tools import mnnconvert` makes the converter known, and changes nothing on the machine.
# Seen: the import of the module that it logs usage with fails, and its except branch calls the shell's `pip install -U
#   aliyun-log-python-sdk`, with dozens of dependencies: into the environment whose pip stands first on the PATH, which
#   may be another one than the Python that imports. So a measurement's environment has other versions after its first
#   conversion than before. The compiled module `_tools`, which `import MNN` makes known, converts without that.
# Source: MNN/tools/mnnconvert.py imports MNN.tools.utils.log; there: os.system("pip install -U aliyun-log-python-sdk").
# Versions: MNN 3.6.1, Python 3.11 on Linux. The script puts a pip of its own on the PATH, which notes its arguments and
#   installs nothing.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet MNN==3.6.1 numpy==2.4.6
mkdir "$folder/noted"
printf '#!/bin/sh\necho "$@" >> "%s"\n' "$folder/arguments" > "$folder/noted/pip"
chmod +x "$folder/noted/pip"
PATH="$folder/noted:$PATH" "$folder/venv/bin/python" - <<'END'
from importlib.metadata import version

import MNN

print("MNN", version("MNN"))
import _tools

print("import MNN and _tools: has", "mnnconvert" if hasattr(_tools, "mnnconvert") else "no converter")
assert hasattr(_tools, "mnnconvert")
END
test ! -e "$folder/arguments"
PATH="$folder/noted:$PATH" "$folder/venv/bin/python" -c "from MNN.tools import mnnconvert" 
echo "after from MNN.tools import mnnconvert, pip was called with:"
cat "$folder/arguments"
grep -q "install -U aliyun-log-python-sdk" "$folder/arguments"
