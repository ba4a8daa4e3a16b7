// Parses machine files. The parser runs in whatever program loads the simulated libraries, so it allocates nothing
// and asks no locale.
#include "simulator/machine_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <initializer_list>
#include <iterator>

#include "process/unique_fd.h"
#include "simulator/calls.h"

namespace simulator {
namespace {

constexpr size_t kMaxFileSize = 64 * 1024;
constexpr uint32_t kMaxMemoryMiB = 16 * 1024 * 1024;

struct Unit {
  const char* name;
  uint64_t factor;
};
constexpr Unit kSizes[] = {{"", 1},
                           {"B", 1},
                           {"K", 1ull << 10},
                           {"KiB", 1ull << 10},
                           {"M", 1ull << 20},
                           {"MiB", 1ull << 20},
                           {"G", 1ull << 30},
                           {"GiB", 1ull << 30},
                           {"T", 1ull << 40},
                           {"TiB", 1ull << 40},
                           {"kB", 1000},
                           {"MB", 1000 * 1000},
                           {"GB", 1000 * 1000 * 1000},
                           {"TB", 1000ull * 1000 * 1000 * 1000}};

// A decimal number in thousandths, and what follows it.
bool read_number(const char* text, uint64_t* thousandths, const char** rest) {
  uint64_t value = 0;
  int digits = 0, fraction = -1;
  for (; (*text >= '0' && *text <= '9') || (*text == '.' && fraction < 0); ++text) {
    if (*text == '.') {
      fraction = 0;
      continue;
    }
    if (fraction >= 0 ? ++fraction > 3 : ++digits > 15) return false;
    value = value * 10 + static_cast<uint64_t>(*text - '0');
  }
  if (digits == 0 || fraction == 0) return false;
  for (int i = fraction < 0 ? 0 : fraction; i < 3; ++i) value *= 10;
  while (*text == ' ') ++text;
  *thousandths = value;
  *rest = text;
  return true;
}

bool read_size(const char* text, uint64_t* bytes) {
  uint64_t thousandths;
  const char* unit;
  if (!read_number(text, &thousandths, &unit)) return false;
  for (const Unit& known : kSizes)
    if (strcmp(unit, known.name) == 0) {
      const auto product = static_cast<unsigned __int128>(thousandths) * known.factor / 1000;
      if (product > uint64_t{kMaxMemoryMiB} * kMiB) return false;
      *bytes = static_cast<uint64_t>(product);
      return true;
    }
  return false;
}

// A whole number and nothing else.
bool read_count(const char* text, uint32_t most, uint32_t* out) {
  uint64_t thousandths;
  const char* rest;
  if (strchr(text, '.') || !read_number(text, &thousandths, &rest) || *rest || thousandths > uint64_t{most} * 1000)
    return false;
  *out = static_cast<uint32_t>(thousandths / 1000);
  return true;
}

// A UUID after "GPU-", "MIG-" or nothing.
bool is_uuid(const char* text, const char* prefix) {
  const size_t start = strlen(prefix);
  if (strncmp(text, prefix, start) != 0 || strlen(text) != start + 36) return false;
  for (size_t i = 0; i < 36; ++i) {
    const char c = text[start + i];
    const bool is_dash = i == 8 || i == 13 || i == 18 || i == 23;
    if (is_dash ? c != '-' : !((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return false;
  }
  return true;
}

// The next word, cut off from what follows it.
char* take_word(char** text) {
  char* word = *text;
  char* end = word + strcspn(word, " ");
  *text = end + strspn(end, " ");
  *end = 0;
  return word;
}

template <size_t N>
bool copy(char (&out)[N], const char* text) {
  if (strlen(text) >= N) return false;
  strcpy(out, text);
  return true;
}

// The figures of a model that are plain numbers: the value is the number times 1000, divided by `divisor`.
struct Figure {
  const char* key;
  uint32_t Model::* member;
  uint32_t divisor;
  uint32_t most;
  const char* unit;
};
constexpr Figure kFigures[] = {
    {"compute-capability", &Model::compute_capability, 100, 999, ""},
    {"multiprocessors", &Model::multiprocessors, 1000, 10000, ""},
    {"speed", &Model::speed, 1000, 100000, ""},
    {"power-limit", &Model::power_limit_mw, 1, 100000000, "W"},
    {"idle-power", &Model::idle_power_mw, 1, 100000000, "W"},
    {"busy-power", &Model::busy_power_mw, 1, 100000000, "W"},
    {"temperature", &Model::idle_temperature, 1000, 200, "C"},
    {"busy-temperature", &Model::busy_temperature, 1000, 200, "C"},
    {"slowdown-temperature", &Model::slowdown_temperature, 1000, 200, "C"},
    {"sm-clock", &Model::sm_mhz, 1000, 100000, "MHz"},
    {"memory-clock", &Model::memory_mhz, 1000, 100000, "MHz"},
    {"fans", &Model::fans, 1000, 8, ""},
    {"nvlinks", &Model::nvlinks, 1000, kMaxNvlinks, ""},
    {"pcie-generation", &Model::pcie_generation, 1000, 9, ""},
    {"pcie-width", &Model::pcie_width, 1000, 32, ""},
};
constexpr const char* kMachineKeys[] = {"driver", "nvml", "cuda", "persistence", "bridge"};
constexpr const char* kGpuKeys[] = {"name",     "count",    "bus",          "numa",        "switch",
                                    "uuid",     "memory",   "reserved",     "used",        "display",
                                    "graphics", "instance", "compute-mode", "unsupported", "mig"};

constexpr size_t kAllGpuKeys = std::size(kGpuKeys) + std::size(kFigures);
static_assert(kAllGpuKeys <= 64, "a bit for every key");

const char* gpu_key(size_t number) {
  return number < std::size(kGpuKeys) ? kGpuKeys[number] : kFigures[number - std::size(kGpuKeys)].key;
}

class Parser {
 public:
  Parser(const char* path, MachineDescription* machine, Error* error) : path_(path), out_(machine), error_(error) {}

  bool parse(const char* text, const char* end) {
    for (line_ = 1; text < end; ++line_) {
      const auto* newline = static_cast<const char*>(memchr(text, '\n', static_cast<size_t>(end - text)));
      const char* last = newline ? newline : end;
      for (const char* c = text; c < last; ++c)
        if (static_cast<unsigned char>(*c) < ' ' && *c != '\t' && !(*c == '\r' && c + 1 == last))
          return fail("a control character; write plain text");
      if (!parse_line(text, last)) return false;
      text = newline ? newline + 1 : end;
    }
    if (!finish_gpu() || !finish_bridges()) return false;
    if (out_->gpu_count == 0) return fail("no GPU; add a line `[gpu]`, and `name = NVIDIA H200` below it");
    if (!has_nvml_) {
      FileTexts& own = out_->texts;
      snprintf(own.nvml_version, sizeof own.nvml_version, "%d.%s", out_->cuda_version / 1000, out_->driver_version);
      out_->nvml_version = own.nvml_version;
    }
    return true;
  }

 private:
  // GPUs of one section. `line` is where it begins; 0: none has begun.
  struct Section {
    unsigned line;
    uint32_t count;
    Model model;
    char name[64];
    Gpu gpu;
    bool has_memory, is_known, has_bus, has_switch, has_used, has_instances;
    bool has_instance_uuid[kUnits - 1], has_instance_memory[kUnits - 1];
    char profiles[kUnits - 1][16];
    char graphics[kMaxGraphics][64];
  };

  __attribute__((format(printf, 2, 3))) bool fail(const char* format, ...) {
    char reason[800];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    return fail_at(line_, reason);
  }

  // Both end up on a terminal.
  bool fail_at(unsigned line, const char* reason) {
    error_->set("%.400s:%u: %s", path_, line, reason);
    for (char* c = error_->message; *c; ++c)
      if (static_cast<unsigned char>(*c) < ' ' || static_cast<unsigned char>(*c) >= 127) *c = '?';
    return false;
  }

  bool expected(const char* key, const char* value, const char* what) {
    return fail("%s = %.80s: expected %s", key, value, what);
  }

  // The line without spaces around it, as `key = value`.
  bool parse_line(const char* text, const char* end) {
    const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
    while (text < end && is_space(*text)) ++text;
    while (end > text && is_space(end[-1])) --end;
    if (text == end || *text == '#') return true;
    char saved[256];
    const auto length = static_cast<size_t>(end - text);
    if (length >= sizeof saved) return fail("a line of more than %zu characters; shorten it", sizeof saved - 1);
    memcpy(saved, text, length);
    saved[length] = 0;
    for (char* c = saved; *c; ++c)
      if (*c == '\t') *c = ' ';
    if (*saved == '[') {
      if (strcmp(saved, "[gpu]") != 0) return fail("%.40s: the only section is [gpu]", saved);
      return finish_gpu() && begin_gpu();
    }
    char* equals = strchr(saved, '=');
    if (!equals) return fail("%.40s: expected `key = value`, `[gpu]`, or a comment that begins with #", saved);
    char* key = saved;
    char* value = equals + 1 + strspn(equals + 1, " ");
    for (*equals = 0; equals > key && equals[-1] == ' ';) *--equals = 0;
    if (!*value) return fail("%.40s has no value; give one, or remove the line", key);
    for (const char* c = value; *c; ++c)
      if (*c == '"' || *c == '\\' || static_cast<unsigned char>(*c) >= 127)
        return fail("%.40s: values are letters, digits and signs of ASCII, without quotes and backslashes", key);
    return section_.line ? set_gpu(key, value) : set_machine(key, value);
  }

  // Notes that a key of this section has been given.
  bool take_once(const char* key, size_t number) {
    if (seen_ >> number & 1) return fail("%s is given twice; remove one", key);
    seen_ |= uint64_t{1} << number;
    return true;
  }

  bool read_switch(const char* key, const char* value, bool* out) {
    *out = strcmp(value, "on") == 0;
    return *out || strcmp(value, "off") == 0 || expected(key, value, "on or off");
  }

  bool set_machine(const char* key, char* value) {
    size_t number = 0;
    while (number < std::size(kMachineKeys) && strcmp(key, kMachineKeys[number]) != 0) ++number;
    if (number == std::size(kMachineKeys))
      return fail("no key %.40s before the first [gpu]; there are driver, nvml, cuda, persistence and bridge", key);
    if (strcmp(key, "bridge") == 0) return add_bridge_line(value);
    if (!take_once(key, number)) return false;
    FileTexts& own = out_->texts;
    if (strcmp(key, "persistence") == 0) return read_switch(key, value, &out_->persistence);
    if (strcmp(key, "cuda") == 0) {
      uint64_t thousandths;
      const char* rest;
      if (!read_number(value, &thousandths, &rest) || *rest || thousandths < 1000 || thousandths >= 1000000)
        return expected(key, value, "a version such as 12.8");
      out_->cuda_version = static_cast<int>(thousandths / 1000 * 1000 + thousandths % 1000 / 100 * 10);
      return true;
    }
    if (strspn(value, "0123456789.") != strlen(value)) return expected(key, value, "a version such as 570.124.06");
    if (strcmp(key, "nvml") == 0) {
      has_nvml_ = true;
      out_->nvml_version = own.nvml_version;
      return copy(own.nvml_version, value) || expected(key, value, "a shorter version");
    }
    out_->driver_version = own.driver_version;
    if (!copy(own.driver_version, value)) return expected(key, value, "a shorter version");
    // Which functions it has depends on when it was released.
    const long major = strtol(value, nullptr, 10);
    const char* point = strchr(value, '.');
    const long minor = point ? strtol(point + 1, nullptr, 10) : 0;
    out_->symbols = major < 450                  ? Symbols::oldest
                    : major < 510                ? Symbols::old
                    : major == 535 && minor < 98 ? Symbols::early_r535
                                                 : Symbols::current;
    return true;
  }

  // "0-2 4": four NVLinks between GPUs 0 and 2; "0-2 4 down" if they have failed.
  bool add_bridge_line(char* value) {
    const char* what = "GPU-GPU LINKS [down], as in 0-2 4";
    char shown[64];
    if (!copy(shown, value)) return expected("bridge", "...", what);
    if (out_->bridge_count == kMaxBridges) return fail("more than %u lines `bridge`; remove one", kMaxBridges);
    Bridge& bridge = out_->bridges[out_->bridge_count];
    char* ends = take_word(&value);
    char* dash = strchr(ends, '-');
    if (!dash) return expected("bridge", shown, what);
    *dash = 0;
    const char* links = take_word(&value);
    const char* state = take_word(&value);
    bridge.is_down = strcmp(state, "down") == 0;
    if (!read_count(ends, kMaxGpus - 1, &bridge.first) || !read_count(dash + 1, kMaxGpus - 1, &bridge.second) ||
        bridge.first == bridge.second || !read_count(links, kMaxNvlinks, &bridge.links) || bridge.links == 0 ||
        (*state && !bridge.is_down) || *value)
      return expected("bridge", shown, what);
    ++out_->bridge_count;
    return true;
  }

  // Where there are bridges, a GPU has the NVLinks that they give it.
  bool finish_bridges() {
    if (out_->bridge_count == 0) return true;
    for (Model& model : out_->texts.models) model.nvlinks = 0;
    for (uint32_t i = 0; i < out_->bridge_count; ++i) {
      const Bridge& bridge = out_->bridges[i];
      for (const uint32_t gpu : {bridge.first, bridge.second}) {
        if (gpu >= out_->gpu_count) return fail("bridge: there is no GPU %u; correct its number", gpu);
        Model& model = out_->texts.models[gpu];
        model.nvlinks += bridge.links;
        if (model.nvlinks > kMaxNvlinks) return fail("bridge: GPU %u has more than %u NVLinks", gpu, kMaxNvlinks);
      }
    }
    return true;
  }

  bool begin_gpu() {
    section_ = {};
    section_.line = line_;
    section_.count = 1;
    section_.gpu.base_used = 0;
    seen_ = 0;
    return true;
  }

  bool set_gpu(const char* key, char* value) {
    size_t number = 0;
    while (number < kAllGpuKeys && strcmp(key, gpu_key(number)) != 0) ++number;
    if (number == kAllGpuKeys) {
      char known[600] = "";
      size_t at = 0;
      for (size_t i = 0; i < kAllGpuKeys && at < sizeof known; ++i)
        at += static_cast<size_t>(snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", gpu_key(i)));
      return fail("a [gpu] has no key %.40s; there are %s", key, known);
    }
    const bool is_repeatable = strcmp(key, "instance") == 0 || strcmp(key, "graphics") == 0;
    if (!is_repeatable && !take_once(key, number)) return false;
    const Figure* figure = number < std::size(kGpuKeys) ? nullptr : &kFigures[number - std::size(kGpuKeys)];
    const bool is_name = strcmp(key, "name") == 0;
    if (!is_name && !section_.name[0])
      return fail("a [gpu] begins with its name: put a line `name = NVIDIA H200` first");
    if (is_name) return set_name(value);
    if (figure) return set_figure(*figure, value);
    if (strcmp(key, "bus") == 0) return set_bus(value);
    if (strcmp(key, "instance") == 0) return add_instance_line(value);
    if (strcmp(key, "graphics") == 0) return add_graphics_line(value);
    if (strcmp(key, "unsupported") == 0) return set_unsupported(value);
    return set_other(key, value);
  }

  bool set_name(const char* value) {
    if (!copy(section_.name, value)) return expected("name", value, "a name of at most 63 characters");
    const Model* known = find_model(value);
    section_.is_known = known != nullptr;
    // Cards for desktops have no ECC and no MIG, but fans.
    const bool is_geforce = strstr(value, "GeForce") != nullptr;
    section_.model = known ? *known : *find_model(is_geforce ? "NVIDIA GeForce RTX 4090" : "Simulated GPU");
    section_.gpu.model = &section_.model;
    return true;
  }

  bool set_figure(const Figure& figure, const char* value) {
    uint64_t thousandths;
    const char* unit;
    const bool is_number = read_number(value, &thousandths, &unit) && (!*unit || strcmp(unit, figure.unit) == 0);
    if (!is_number || thousandths % figure.divisor || thousandths / figure.divisor > figure.most) {
      char what[64];
      const uint32_t most = static_cast<uint32_t>(uint64_t{figure.most} * figure.divisor / 1000);
      snprintf(what, sizeof what, "a number up to %u%s%s", most, *figure.unit ? " " : "", figure.unit);
      return expected(figure.key, value, what);
    }
    section_.model.*figure.member = static_cast<uint32_t>(thousandths / figure.divisor);
    return true;
  }

  bool set_bus(const char* value) {
    unsigned domain, bus, slot;
    char function;
    int length = 0;
    // The space before %n would take one that isn't there.
    if (strspn(value, "0123456789abcdefABCDEF:.") != strlen(value) ||
        sscanf(value, "%8x:%2x:%2x.%c%n", &domain, &bus, &slot, &function, &length) != 4 || function != '0' ||
        value[length] || slot > 31)
      return expected("bus", value, "a PCI address such as 0000:19:00.0");
    section_.gpu.domain = domain;
    section_.gpu.bus = bus;
    section_.gpu.slot = slot;
    section_.has_bus = true;
    return true;
  }

  bool read_memory(const char* key, const char* value, uint32_t least, uint32_t* mebibytes) {
    uint64_t bytes;
    if (!read_size(value, &bytes) || bytes % kMiB || bytes < least * kMiB)
      return expected(key, value, "whole MiB, as in 80GiB or 143771 MiB");
    *mebibytes = static_cast<uint32_t>(bytes / kMiB);
    return true;
  }

  bool set_other(const char* key, const char* value) {
    Gpu& gpu = section_.gpu;
    const auto is = [&](const char* other) { return strcmp(key, other) == 0; };
    if (is("memory")) {
      section_.has_memory = true;
      return read_memory(key, value, 64, &section_.model.memory_mib);
    }
    if (is("reserved"))
      return read_size(value, &section_.model.reserved_bytes) || expected(key, value, "a size, as in 614 MiB");
    if (is("used")) {
      section_.has_used = true;
      return read_size(value, &gpu.base_used) || expected(key, value, "a size, as in 4MiB");
    }
    if (is("count"))
      return (read_count(value, kMaxGpus, &section_.count) && section_.count > 0) ||
             expected(key, value, "how many such GPUs there are, 1 to 64");
    if (is("numa")) return read_count(value, 63, &gpu.numa_node) || expected(key, value, "a NUMA node, 0 to 63");
    if (is("switch")) {
      section_.has_switch = true;
      return read_count(value, 63, &gpu.pcie_switch) || expected(key, value, "a PCIe switch, 0 to 63");
    }
    if (is("uuid"))
      return ((is_uuid(value, "GPU-") || is_uuid(value, "")) && copy(gpu.uuid, value)) ||
             expected(key, value, "GPU-00000000-0000-4000-8000-000000000000 with digits of its own");
    if (is("display")) return read_switch(key, value, &gpu.display);
    if (is("mig")) {
      if (strcmp(value, "none") == 0) {
        section_.model.mig_profiles[0] = nullptr;
        return true;
      }
      if (!read_switch(key, value, &gpu.mig)) return false;
      return !gpu.mig || gpu.can_mig() || fail("mig = on: %s has no MIG", section_.name);
    }
    constexpr const char* kModes[] = {"default", "exclusive-thread", "prohibited", "exclusive-process"};
    for (uint32_t mode = 0; mode < std::size(kModes); ++mode)
      if (strcmp(value, kModes[mode]) == 0) {
        gpu.compute_mode = mode;
        return true;
      }
    return expected(key, value, "default, exclusive-process, exclusive-thread or prohibited");
  }

  // "0 3g.40gb 2:0", and its UUID and its memory, if they aren't the usual ones; "none" for a GPU without any.
  bool add_instance_line(char* value) {
    if (strcmp(value, "none") == 0) return section_.has_instances = true;
    const char* what = "PLACE PROFILE ID:ID [MIG-UUID] [MEMORY], as in 0 3g.40gb 2:0";
    char shown[128];
    if (!copy(shown, value)) return expected("instance", "...", what);
    uint32_t place, gpu_instance, compute_instance;
    if (!read_count(take_word(&value), kUnits - 2, &place)) return expected("instance", shown, what);
    MigInstance& instance = section_.gpu.instances[place];
    if (instance.present) return fail("instance %u is given twice; remove one", place);
    const char* profile = take_word(&value);
    // The slices of the GPU instance, of "1c.3g.40gb", too.
    const char* slices = strchr(profile, 'g');
    if (!slices || slices == profile || slices[-1] < '1' || slices[-1] > '7' || slices[1] != '.' ||
        !copy(section_.profiles[place], profile))
      return expected("instance", shown, what);
    char* ids = take_word(&value);
    char* colon = strchr(ids, ':');
    if (!colon) return expected("instance", shown, what);
    *colon = 0;
    if (!read_count(ids, 999, &gpu_instance) || !read_count(colon + 1, 999, &compute_instance))
      return expected("instance", shown, what);
    if (*value == 'M') {
      const char* uuid = take_word(&value);
      section_.has_instance_uuid[place] = is_uuid(uuid, "MIG-") && copy(instance.uuid, uuid);
      if (!section_.has_instance_uuid[place]) return expected("instance", shown, what);
    }
    if (*value) {
      section_.has_instance_memory[place] = true;
      if (!read_size(value, &instance.memory) || instance.memory < kMiB) return expected("instance", shown, what);
    }
    instance.present = true;
    instance.slices = static_cast<uint32_t>(slices[-1] - '0');
    instance.gpu_instance_id = gpu_instance;
    instance.compute_instance_id = compute_instance;
    section_.has_instances = true;
    return true;
  }

  // "182 MiB", or with a name behind it: "182 MiB /usr/bin/gnome-shell".
  bool add_graphics_line(char* value) {
    Gpu& gpu = section_.gpu;
    if (gpu.graphics_count == kMaxGraphics) return fail("more than %u lines `graphics`; remove one", kMaxGraphics);
    char* name = strchr(value, '/');
    if (name && name > value) {
      if (!copy(section_.graphics[gpu.graphics_count], name)) return expected("graphics", value, "a shorter name");
      char* end = name;
      while (end > value && end[-1] == ' ') --end;
      *end = 0;
    } else {
      copy(section_.graphics[gpu.graphics_count], "/usr/lib/xorg/Xorg");
    }
    uint32_t mebibytes = 0;
    if (!read_memory("graphics", value, 0, &mebibytes)) return false;
    gpu.graphics[gpu.graphics_count].pid = kFirstMadeUpPid + gpu.graphics_count;
    gpu.graphics[gpu.graphics_count].memory_mib = mebibytes;
    ++gpu.graphics_count;
    return true;
  }

  bool set_unsupported(char* value) {
    for (char* rest = value; *rest;) {
      char* word = rest;
      rest += strcspn(rest, ",");
      if (*rest) *rest++ = 0;
      word += strspn(word, " ");
      word[strcspn(word, " ")] = 0;
      unsigned call = 0;
      while (call < kCalls && strcmp(word, kCallNames[call]) != 0) ++call;
      if (call == kCalls) return fail("unsupported: no call %.40s; `gpu-owner simulate --help` lists the calls", word);
      section_.gpu.unsupported |= call_bit(call);
    }
    return true;
  }

  // Checks that need the whole section; makes its GPUs.
  bool finish_gpu() {
    Section& section = section_;
    if (!section.line) return true;
    const unsigned line = section.line;
    if (!section.name[0]) return fail_at(line, "this [gpu] has no name; add a line `name = NVIDIA H200`");
    if (!section.is_known && !section.has_memory) {
      char reason[160];
      snprintf(reason, sizeof reason, "no model %s is known; give its memory, as in `memory = 80GiB`", section.name);
      return fail_at(line, reason);
    }
    if (section.count > 1 && (section.has_bus || section.gpu.uuid[0] || section.has_instances))
      return fail_at(line,
                     "bus, uuid and instance are those of one GPU: leave out `count`, and write a [gpu] for each");
    if (section.count > kMaxGpus - out_->gpu_count) return fail_at(line, "more than 64 GPUs; remove some");
    if (section.has_instances && !section.gpu.can_mig()) return fail_at(line, "it has instances, but no MIG");
    for (const MigInstance& instance : section.gpu.instances)
      if (instance.memory > section.gpu.total()) return fail_at(line, "an instance has more memory than its GPU");
    Model& model = section.model;
    const Gpu& gpu = section.gpu;
    if (gpu.reserved() >= gpu.total() || gpu.base_used > gpu.total() - gpu.reserved())
      return fail_at(line, "less memory than is reserved and used; correct `memory`, `reserved` or `used`");
    // Figures that are missing follow those that were given.
    model.lowest_power_limit_mw = std::min(model.lowest_power_limit_mw, model.power_limit_mw);
    model.highest_power_limit_mw = std::max(model.highest_power_limit_mw, model.power_limit_mw);
    model.busy_power_mw = std::min(model.busy_power_mw, model.power_limit_mw);
    model.busy_sm_mhz = std::min(model.busy_sm_mhz, model.sm_mhz);
    model.idle_sm_mhz = std::min(model.idle_sm_mhz, model.sm_mhz);
    model.idle_memory_mhz = std::min(model.idle_memory_mhz, model.memory_mhz);
    for (uint32_t i = 0; i < section.count; ++i)
      if (!make_gpu()) return false;
    section.line = 0;
    return true;
  }

  bool make_gpu() {
    const Section& section = section_;
    const Gpu& wanted = section.gpu;
    const uint32_t index = out_->gpu_count;
    const Gpu* before = index ? &out_->gpus[index - 1] : nullptr;
    FileTexts& own = out_->texts;
    memcpy(own.names[index], section.name, sizeof section.name);
    own.models[index] = section.model;
    own.models[index].name = own.names[index];
    const uint32_t domain = section.has_bus ? wanted.domain : before ? before->domain : 0;
    const uint32_t bus = section.has_bus ? wanted.bus : before ? before->bus + 1 : 1;
    const uint32_t slot = section.has_bus ? wanted.slot : 0;
    const auto place = [](uint64_t in_domain, uint64_t on_bus, uint64_t in_slot) {
      return in_domain << 32 | on_bus << 8 | in_slot;
    };
    if (bus > 255 || (before && place(domain, bus, slot) <= place(before->domain, before->bus, before->slot)))
      return fail_at(section.line, "GPUs stand in the order of their buses, each on one of its own; correct `bus`");
    Gpu& gpu = add_gpu(out_, own.models[index], bus);
    gpu.domain = domain;
    gpu.slot = slot;
    gpu.numa_node = wanted.numa_node;
    if (section.has_switch) gpu.pcie_switch = wanted.pcie_switch;
    if (section.has_used) gpu.base_used = wanted.base_used;
    gpu.display = wanted.display;
    gpu.mig = wanted.mig;
    gpu.compute_mode = wanted.compute_mode;
    gpu.unsupported = wanted.unsupported;
    if (wanted.uuid[0]) memcpy(gpu.uuid, wanted.uuid, sizeof gpu.uuid);
    gpu.graphics_count = wanted.graphics_count;
    gpu.graphics_always = !gpu.display;
    memcpy(own.graphics[index], section.graphics, sizeof section.graphics);
    for (uint32_t i = 0; i < gpu.graphics_count; ++i) {
      gpu.graphics[i] = wanted.graphics[i];
      gpu.graphics[i].name = own.graphics[index][i];
    }
    if (section.has_instances) make_instances(index);
    return true;
  }

  void make_instances(uint32_t index) {
    FileTexts& own = out_->texts;
    memcpy(own.profiles[index], section_.profiles, sizeof section_.profiles);
    for (uint32_t place = 0; place < kUnits - 1; ++place) {
      const MigInstance& wanted = section_.gpu.instances[place];
      out_->gpus[index].instances[place].present = false;
      if (!wanted.present) continue;
      MigInstance& instance = add_instance(out_, index, place, wanted.slices, wanted.gpu_instance_id);
      instance.compute_instance_id = wanted.compute_instance_id;
      instance.profile = own.profiles[index][place];
      if (section_.has_instance_uuid[place]) memcpy(instance.uuid, wanted.uuid, sizeof instance.uuid);
      if (section_.has_instance_memory[place]) instance.memory = wanted.memory;
    }
  }

  const char* path_;
  MachineDescription* out_;
  Error* error_;
  unsigned line_ = 0;
  uint64_t seen_ = 0;
  bool has_nvml_ = false;
  Section section_ = {};
};

// "my server.conf" is "my-server".
void base_name(const char* path, char (&out)[48]) {
  const char* slash = strrchr(path, '/');
  const char* name = slash ? slash + 1 : path;
  const char* point = strrchr(name, '.');
  const size_t length = point && point > name ? static_cast<size_t>(point - name) : strlen(name);
  size_t at = 0;
  for (; at < length && at < sizeof out - 1; ++at) {
    const char c = name[at];
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    out[at] = is_plain || (at > 0 && c == '.') ? c : '-';
  }
  out[at] = 0;
}

}  // namespace

bool parse_machine_file(const char* path, const char* text, size_t size, MachineDescription* out, Error* error) {
  uint32_t hash = 0x811c9dc5;  // FNV-1a
  for (size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<unsigned char>(text[i])) * 0x01000193;
  char base[48];
  base_name(path, base);
  // UUIDs are made from the name that it has meanwhile: they stay the same when the file is edited.
  begin_machine(base, out);
  out->wsl = strncmp(base, "wsl", 3) == 0;  // as lib/gpus/containers.ts has it
  if (!Parser(path, out, error).parse(text, text + size)) return false;
  snprintf(out->name, sizeof out->name, "%s-%08x", base, hash);
  return true;
}

bool describe_machine_file(const char* path, MachineDescription* out, Error* error) {
  const gpu_owner::process::UniqueFd file(open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat facts;
  if (!file || fstat(file.get(), &facts) != 0)
    return error->set("GPU_OWNER_SIMULATE=%.400s cannot be read: %s; name a file that describes a machine", path,
                      strerror(errno));
  if (!S_ISREG(facts.st_mode) || facts.st_size > static_cast<off_t>(kMaxFileSize))
    return error->set("GPU_OWNER_SIMULATE=%.400s: not a file that describes a machine (a text of at most 64 KiB)",
                      path);
  auto* text = static_cast<char*>(malloc(kMaxFileSize));
  const ssize_t size = text ? read(file.get(), text, kMaxFileSize) : -1;
  const int reason = errno;
  const bool described = size >= 0 ? parse_machine_file(path, text, static_cast<size_t>(size), out, error)
                                   : error->set("GPU_OWNER_SIMULATE=%.400s cannot be read: %s", path, strerror(reason));
  free(text);
  return described;
}

}  // namespace simulator
