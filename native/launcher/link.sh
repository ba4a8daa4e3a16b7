# Compiles the launcher's program: sh link.sh SOURCE PROGRAM, with the compiler that CXX names. A program that doesn't come
# about is not missed: the launcher, a shell script, then does its work.
"${CXX:-c++}" -O2 -std=c++17 -Wall -Wextra -ffreestanding -fno-exceptions -fno-rtti -fno-stack-protector \
  -fno-asynchronous-unwind-tables -fno-tree-loop-distribute-patterns -fno-pie -no-pie -static -nostdlib \
  -Wl,--build-id=none -Wl,-z,noexecstack -o "$2" "$1" ||
  echo "gpu-owner-inherited can't be built; gpu-owner starts some milliseconds later without it" >&2
