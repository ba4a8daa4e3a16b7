# The build on users' machines and for prebuilt binaries (node-gyp). CMakeLists.txt builds the same for development.
{
  "conditions": [
    ["OS=='linux'", {
      "variables": {
        # make runs in build/, so what the linker is told about must be absolute
        "exports": "<(module_root_dir)/native/exports"
      },
      "target_defaults": {
        "include_dirs": ["native"],
        "cflags_cc!": ["-std=gnu++17", "-std=gnu++20", "-std=gnu++2a"],
        "cflags_cc": [
          "-std=c++17", "-Wall", "-Wextra", "-fPIC", "-fno-exceptions", "-fno-rtti",
          "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-include", "compat/glibc.h"
        ],
        "ldflags!": ["-rdynamic"],
        "ldflags": ["-Wl,--as-needed"],
        "libraries": ["-lpthread", "-ldl"]
      },
      "targets": [
        {
          "target_name": "gpu_owner",
          "sources": [
            "<!@(node -p \"require('./native/sources.json').core.join(' ')\")",
            "<!@(node -p \"require('./native/sources.json').addon.join(' ')\")",
            "<!@(node -p \"require('./native/sources.json').compat.join(' ')\")"
          ],
          "include_dirs": ["<!(node -p \"require('node-addon-api').include_dir\")"],
          "defines": ["NAPI_VERSION=8", "NODE_ADDON_API_DISABLE_DEPRECATED", "NAPI_DISABLE_CPP_EXCEPTIONS", "NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS"],
          # A thread of ours may be in a call of the driver when the last environment that loaded the addon ends.
          "ldflags": ["-Wl,--version-script=<(exports)/addon.map", "-Wl,-z,nodelete"]
        },
        {
          "target_name": "gpu-owner-keeper",
          "type": "executable",
          "sources": [
            "<!@(node -p \"require('./native/sources.json').keeper.join(' ')\")",
            "<!@(node -p \"require('./native/sources.json').compat.join(' ')\")",
            "<!@(node -p \"require('./native/sources.json').compat_start.join(' ')\")"
          ]
        },
        {
          "target_name": "gpu-owner-placeholder",
          "type": "executable",
          "sources": [
            "<!@(node -p \"require('./native/sources.json').placeholder_core.join(' ')\")",
            "<!@(node -p \"require('./native/sources.json').placeholder.join(' ')\")",
            "<!@(node -p \"require('./native/sources.json').compat.join(' ')\")",
            "<!@(node -p \"require('./native/sources.json').compat_start.join(' ')\")"
          ]
        },
        {
          "target_name": "simulated_nvml",
          "type": "shared_library",
          "product_prefix": "lib",
          "product_name": "nvidia-ml",
          "product_extension": "so.1",
          "product_dir": "<(PRODUCT_DIR)/simulator",
          "sources": [
            "<!@(node -p \"require('./native/sources.json').simulator_nvml.join(' ')\")",
            "<!@(node -p \"require('./native/sources.json').simulator_shared.join(' ')\")",
            "<!@(node -p \"require('./native/sources.json').compat.join(' ')\")"
          ],
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
          "sources": [
            "<!@(node -p \"require('./native/sources.json').simulator_cuda.join(' ')\")",
            "<!@(node -p \"require('./native/sources.json').simulator_shared.join(' ')\")",
            "<!@(node -p \"require('./native/sources.json').compat.join(' ')\")"
          ],
          "ldflags": ["-Wl,--version-script=<(exports)/simulated-cuda.map"]
        },
        {
          "target_name": "nvidia-smi",
          "type": "executable",
          "product_dir": "<(PRODUCT_DIR)/simulator/bin",
          "sources": [
            "<!@(node -p \"require('./native/sources.json').smi.join(' ')\")",
            "<!@(node -p \"require('./native/sources.json').compat.join(' ')\")",
            "<!@(node -p \"require('./native/sources.json').compat_start.join(' ')\")"
          ]
        },
        {
          "target_name": "gpu-owner-simulator",
          "type": "executable",
          "sources": [
            "<!@(node -p \"require('./native/sources.json').simulator_tool.join(' ')\")",
            "<!@(node -p \"require('./native/sources.json').simulator_shared.join(' ')\")",
            "<!@(node -p \"require('./native/sources.json').compat.join(' ')\")",
            "<!@(node -p \"require('./native/sources.json').compat_start.join(' ')\")"
          ]
        }
      ]
    }, {
      # Elsewhere there is nothing to build; the package installs, and its first call says that it needs Linux.
      "targets": [{ "target_name": "gpu_owner", "type": "none" }]
    }]
  ]
}
