#include "nvml/topology.h"

#include <algorithm>

namespace gpu_owner::nvml {
namespace {

constexpr uint32_t kMaxLinks = 18;  // Hopper and Blackwell
constexpr uint32_t kTypeSwitch = 2, kTypeUnknown = 255;

// An active NVLink of a GPU.
struct Link {
  PciAddress remote;
  uint32_t type;  // of the remote device, as NVML has it
};

struct Links {
  bool known = true;
  std::vector<Link> active;
  int32_t inactive = 0;
};

// A link that the GPU doesn't have is an error, not "inactive".
bool says_there_is_none(Code code) {
  return code == ERROR_NOT_SUPPORTED || code == ERROR_INVALID_ARGUMENT || code == ERROR_FUNCTION_NOT_FOUND;
}

Links links_of(const Library& library, Device device) {
  Links links;
  for (uint32_t number = 0; number < kMaxLinks; number++) {
    bool active = false;
    const Code code = library.nvlink_state(device, number, active);
    if (code != SUCCESS) {
      links.known = links.known && says_there_is_none(code);
      continue;
    }
    if (!active) {
      links.inactive++;
      continue;
    }
    Link link = {{}, kTypeUnknown};
    library.nvlink_remote_address(device, number, link.remote);
    if (library.nvlink_remote_type(device, number, link.type) != SUCCESS) link.type = kTypeUnknown;
    links.active.push_back(link);
  }
  return links;
}

int32_t count_to(const Links& links, const PciAddress& address) {
  return static_cast<int32_t>(std::count_if(links.active.begin(), links.active.end(), [&](const Link& link) {
    return link.type != kTypeSwitch && link.remote == address;
  }));
}

// Links that lead to NVSwitches: older drivers tell no type, but the remote device is none of the GPUs.
int32_t count_to_switches(const Links& links, const std::vector<PciAddress>& gpus) {
  const auto leads_to_switch = [&](const Link& link) {
    return link.type == kTypeUnknown ? std::find(gpus.begin(), gpus.end(), link.remote) == gpus.end()
                                     : link.type == kTypeSwitch;
  };
  return static_cast<int32_t>(std::count_if(links.active.begin(), links.active.end(), leads_to_switch));
}

}  // namespace

Topology read_topology(const Library& library, const std::vector<Device>& devices) {
  const size_t count = devices.size();
  Topology topology;
  topology.places.resize(count);
  topology.connections.resize(count * count);
  std::vector<Links> links(count);
  std::vector<PciAddress> addresses(count);
  for (size_t i = 0; i < count; i++) {
    if (devices[i] == nullptr) continue;
    Topology::Place& place = topology.places[i];
    library.near_cpus(devices[i], place.cpus);
    library.near_nodes(devices[i], place.nodes);
    if (library.pci_address(devices[i], addresses[i]) != SUCCESS) continue;
    links[i] = links_of(library, devices[i]);
    if (!links[i].known) continue;
    place.active_links = static_cast<int32_t>(links[i].active.size());
    place.inactive_links = links[i].inactive;
  }
  for (size_t i = 0; i < count; i++) {
    for (size_t j = i + 1; j < count; j++) {
      if (devices[i] == nullptr || devices[j] == nullptr) continue;
      Connection& connection = topology.between(i, j);
      if (library.topology_level(devices[i], devices[j], connection.level) != SUCCESS) connection.level = kUnknownLink;
      if (topology.places[i].active_links >= 0 && topology.places[j].active_links >= 0) {
        connection.nvlinks = std::min(count_to(links[i], addresses[j]), count_to(links[j], addresses[i]));
        const int32_t switched =
            std::min(count_to_switches(links[i], addresses), count_to_switches(links[j], addresses));
        connection.by_switch = connection.nvlinks == 0 && switched > 0;
        if (connection.by_switch) connection.nvlinks = switched;
        // Links can be up while the GPUs can't use them: the fabric manager of NVSwitches doesn't run.
        bool usable = false;
        if (connection.nvlinks > 0 && library.nvlink_peers(devices[i], devices[j], usable) == SUCCESS && !usable)
          connection.nvlinks = 0;
      }
      topology.between(j, i) = connection;
    }
  }
  return topology;
}

}  // namespace gpu_owner::nvml
