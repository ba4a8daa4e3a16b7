# The build on users' machines and for prebuilt binaries (node-gyp). CMakeLists.txt builds the same for development.
{
  "conditions": [
    ["OS=='linux'", {
      "variables": {
        # make runs in build/, so what the linker is told about must be absolute
        "exports": "<(module_root_dir)/native/exports"
      },
      "target_defaults": {
        "include_dirs": ["native", "."],
        "cflags_cc!": ["-std=gnu++17", "-std=gnu++20", "-std=gnu++2a"],
        "cflags_cc": [
          "-std=c++17", "-Wall", "-Wextra", "-fPIC", "-fno-exceptions", "-fno-rtti",
          "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-include", "compat/glibc.h"
        ],
        # not the -O3 of Node.js, which compiles for a sixth longer
        "configurations": { "Release": { "cflags!": ["-O3"], "cflags": ["-O2"] } },
        "ldflags!": ["-rdynamic"],
        "ldflags": ["-Wl,--as-needed"],
        "libraries": ["-lpthread", "-ldl"],
        # Otherwise the linker exports templates that libstdc++ has as well.
        "target_conditions": [
          ["_type=='executable'", { "ldflags": ["-Wl,--version-script=<(exports)/executable.map"] }]
        ]
      },
      "targets": [
        {
          "target_name": "gpu_owner_core",
          "type": "static_library",
          "sources": ["<!@(node native/unity.js driver core)"]
        },
        {
          "target_name": "simulator_shared",
          "type": "static_library",
          "sources": ["<!@(node native/unity.js simulator_shared)"]
        },
        {
          "target_name": "gpu_owner",
          "sources": ["<!@(node native/unity.js addon compat)"],
          "dependencies": ["gpu_owner_core"],
          "include_dirs": ["<!(node -p \"require('node-addon-api').include_dir\")"],
          "defines": ["NAPI_VERSION=8", "NODE_ADDON_API_DISABLE_DEPRECATED", "NAPI_DISABLE_CPP_EXCEPTIONS", "NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS"],
          # A thread of ours may be in a call of the driver when the last environment that loaded the addon ends.
          "ldflags": ["-Wl,--version-script=<(exports)/addon.map", "-Wl,-z,nodelete"]
        },
        {
          "target_name": "gpu-owner-keeper",
          "type": "executable",
          "sources": ["<!@(node native/unity.js keeper compat compat_start)"]
        },
        {
          "target_name": "gpu-owner-placeholder",
          "type": "executable",
          "sources": ["<!@(node native/unity.js placeholder compat compat_start)"],
          "dependencies": ["gpu_owner_core"]
        },
        {
          "target_name": "simulated_nvml",
          "type": "shared_library",
          "product_prefix": "lib",
          "product_name": "nvidia-ml",
          "product_extension": "so.1",
          "product_dir": "<(PRODUCT_DIR)/simulator",
          "sources": ["<!@(node native/unity.js simulator_nvml compat)"],
          "dependencies": ["simulator_shared"],
          # Code apart from the table of symbols, which the library changes: nvml_symbols.cc
          "ldflags": ["-Wl,--version-script=<(exports)/simulated-nvml.map", "-Wl,-z,separate-code"]
        },
        {
          "target_name": "simulated_cuda",
          "type": "shared_library",
          "product_prefix": "lib",
          "product_name": "cuda",
          "product_extension": "so.1",
          "product_dir": "<(PRODUCT_DIR)/simulator",
          "sources": ["<!@(node native/unity.js simulator_cuda compat)"],
          "dependencies": ["simulator_shared"],
          "ldflags": ["-Wl,--version-script=<(exports)/simulated-cuda.map"]
        },
        {
          "target_name": "nvidia-smi",
          "type": "executable",
          "product_dir": "<(PRODUCT_DIR)/simulator/bin",
          "sources": ["<!@(node native/unity.js smi compat compat_start)"]
        },
        {
          "target_name": "gpu-owner-simulator",
          "type": "executable",
          "sources": ["<!@(node native/unity.js simulator_tool compat compat_start)"],
          "dependencies": ["simulator_shared"]
        }
      ]
    }, {
      # Elsewhere there is nothing to build; the package installs, and its first call says that it needs Linux.
      "targets": [{ "target_name": "gpu_owner", "type": "none" }]
    }]
  ]
}
