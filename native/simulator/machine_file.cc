// Parses machine files. It runs in whatever program loads the simulated libraries, so it allocates nothing and asks no
// locale.
#include "simulator/machine_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <iterator>

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
bool readNumber(const char* text, uint64_t* thousandths, const char** rest) {
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

bool readSize(const char* text, uint64_t* bytes) {
  uint64_t thousandths;
  const char* unit;
  if (!readNumber(text, &thousandths, &unit)) return false;
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
bool readCount(const char* text, uint32_t most, uint32_t* out) {
  uint64_t thousandths;
  const char* rest;
  if (strchr(text, '.') || !readNumber(text, &thousandths, &rest) || *rest || thousandths > uint64_t{most} * 1000)
    return false;
  *out = static_cast<uint32_t>(thousandths / 1000);
  return true;
}

// "GPU-" or "MIG-" and a UUID.
bool isUuid(const char* text, const char* prefix) {
  if (strncmp(text, prefix, 4) != 0 || strlen(text) != 40) return false;
  for (int i = 0; i < 36; ++i) {
    const char c = text[4 + i];
    const bool isDash = i == 8 || i == 13 || i == 18 || i == 23;
    if (isDash ? c != '-' : !((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return false;
  }
  return true;
}

// The next word, cut off from what follows it.
char* takeWord(char** text) {
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
    {"compute-capability", &Model::computeCapability, 100, 999, ""},
    {"multiprocessors", &Model::multiprocessors, 1000, 10000, ""},
    {"speed", &Model::speed, 1000, 100000, ""},
    {"power-limit", &Model::powerLimitMw, 1, 100000000, "W"},
    {"idle-power", &Model::idlePowerMw, 1, 100000000, "W"},
    {"busy-power", &Model::busyPowerMw, 1, 100000000, "W"},
    {"temperature", &Model::idleTemperature, 1000, 200, "C"},
    {"busy-temperature", &Model::busyTemperature, 1000, 200, "C"},
    {"slowdown-temperature", &Model::slowdownTemperature, 1000, 200, "C"},
    {"sm-clock", &Model::smMhz, 1000, 100000, "MHz"},
    {"memory-clock", &Model::memoryMhz, 1000, 100000, "MHz"},
    {"fans", &Model::fans, 1000, 8, ""},
    {"nvlinks", &Model::nvlinks, 1000, 18, ""},
    {"pcie-generation", &Model::pcieGeneration, 1000, 9, ""},
    {"pcie-width", &Model::pcieWidth, 1000, 32, ""},
};
constexpr const char* kMachineKeys[] = {"driver", "nvml", "cuda", "persistence"};
constexpr const char* kGpuKeys[] = {"name",     "count",        "bus",         "numa",    "uuid",
                                    "memory",   "reserved",     "used",        "display", "graphics",
                                    "instance", "compute-mode", "unsupported", "mig"};

constexpr size_t kAllGpuKeys = std::size(kGpuKeys) + std::size(kFigures);
static_assert(kAllGpuKeys <= 64, "a bit for every key");

const char* gpuKey(size_t number) {
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
      if (!parseLine(text, last)) return false;
      text = newline ? newline + 1 : end;
    }
    if (!finishGpu()) return false;
    if (out_->gpuCount == 0) return fail("no GPU; add a line `[gpu]`, and `name = NVIDIA H200` below it");
    if (!hasNvml_) {
      FileTexts& own = out_->texts;
      snprintf(own.nvmlVersion, sizeof own.nvmlVersion, "%d.%s", out_->cudaVersion / 1000, out_->driverVersion);
      out_->nvmlVersion = own.nvmlVersion;
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
    bool hasMemory, isKnown, hasBus, hasUsed, hasInstances, hasInstanceUuid[kUnits - 1], hasInstanceMemory[kUnits - 1];
    char profiles[kUnits - 1][16];
    char graphics[kMaxGraphics][64];
  };

  __attribute__((format(printf, 2, 3))) bool fail(const char* format, ...) {
    char reason[800];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    return failAt(line_, reason);
  }

  // Both end up on a terminal.
  bool failAt(unsigned line, const char* reason) {
    error_->set("%.400s:%u: %s", path_, line, reason);
    for (char* c = error_->message; *c; ++c)
      if (static_cast<unsigned char>(*c) < ' ' || static_cast<unsigned char>(*c) >= 127) *c = '?';
    return false;
  }

  bool expected(const char* key, const char* value, const char* what) {
    return fail("%s = %.80s: expected %s", key, value, what);
  }

  // The line without spaces around it, as `key = value`.
  bool parseLine(const char* text, const char* end) {
    const auto isSpace = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
    while (text < end && isSpace(*text)) ++text;
    while (end > text && isSpace(end[-1])) --end;
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
      return finishGpu() && beginGpu();
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
    return section_.line ? setGpu(key, value) : setMachine(key, value);
  }

  // Notes that a key of this section has been given.
  bool takeOnce(const char* key, size_t number) {
    if (seen_ >> number & 1) return fail("%s is given twice; remove one", key);
    seen_ |= uint64_t{1} << number;
    return true;
  }

  bool readSwitch(const char* key, const char* value, bool* out) {
    *out = strcmp(value, "on") == 0;
    return *out || strcmp(value, "off") == 0 || expected(key, value, "on or off");
  }

  bool setMachine(const char* key, const char* value) {
    size_t number = 0;
    while (number < std::size(kMachineKeys) && strcmp(key, kMachineKeys[number]) != 0) ++number;
    if (number == std::size(kMachineKeys))
      return fail("no key %.40s before the first [gpu]; there are driver, nvml, cuda and persistence", key);
    if (!takeOnce(key, number)) return false;
    FileTexts& own = out_->texts;
    if (strcmp(key, "persistence") == 0) return readSwitch(key, value, &out_->persistence);
    if (strcmp(key, "cuda") == 0) {
      uint64_t thousandths;
      const char* rest;
      if (!readNumber(value, &thousandths, &rest) || *rest || thousandths < 1000 || thousandths >= 1000000)
        return expected(key, value, "a version such as 12.8");
      out_->cudaVersion = static_cast<int>(thousandths / 1000 * 1000 + thousandths % 1000 / 100 * 10);
      return true;
    }
    if (strspn(value, "0123456789.") != strlen(value)) return expected(key, value, "a version such as 570.124.06");
    if (strcmp(key, "nvml") == 0) {
      hasNvml_ = true;
      out_->nvmlVersion = own.nvmlVersion;
      return copy(own.nvmlVersion, value) || expected(key, value, "a shorter version");
    }
    out_->driverVersion = own.driverVersion;
    if (!copy(own.driverVersion, value)) return expected(key, value, "a shorter version");
    // Which functions it has depends on when it was released.
    const long major = strtol(value, nullptr, 10);
    const char* point = strchr(value, '.');
    const long minor = point ? strtol(point + 1, nullptr, 10) : 0;
    out_->symbols = major < 450                  ? Symbols::Oldest
                    : major < 510                ? Symbols::Old
                    : major == 535 && minor < 98 ? Symbols::EarlyR535
                                                 : Symbols::Current;
    return true;
  }

  bool beginGpu() {
    section_ = {};
    section_.line = line_;
    section_.count = 1;
    section_.gpu.baseUsed = 0;
    seen_ = 0;
    return true;
  }

  bool setGpu(const char* key, char* value) {
    size_t number = 0;
    while (number < kAllGpuKeys && strcmp(key, gpuKey(number)) != 0) ++number;
    if (number == kAllGpuKeys) {
      char known[600] = "";
      size_t at = 0;
      for (size_t i = 0; i < kAllGpuKeys && at < sizeof known; ++i)
        at += static_cast<size_t>(snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", gpuKey(i)));
      return fail("a [gpu] has no key %.40s; there are %s", key, known);
    }
    const bool isRepeatable = strcmp(key, "instance") == 0 || strcmp(key, "graphics") == 0;
    if (!isRepeatable && !takeOnce(key, number)) return false;
    const Figure* figure = number < std::size(kGpuKeys) ? nullptr : &kFigures[number - std::size(kGpuKeys)];
    const bool isName = strcmp(key, "name") == 0;
    if (!isName && !section_.name[0])
      return fail("a [gpu] begins with its name: put a line `name = NVIDIA H200` first");
    if (isName) return setName(value);
    if (figure) return setFigure(*figure, value);
    if (strcmp(key, "bus") == 0) return setBus(value);
    if (strcmp(key, "instance") == 0) return addInstanceLine(value);
    if (strcmp(key, "graphics") == 0) return addGraphicsLine(value);
    if (strcmp(key, "unsupported") == 0) return setUnsupported(value);
    return setOther(key, value);
  }

  bool setName(const char* value) {
    if (!copy(section_.name, value)) return expected("name", value, "a name of at most 63 characters");
    const Model* known = findModel(value);
    section_.isKnown = known != nullptr;
    section_.model = known ? *known : *findModel("Simulated GPU");
    section_.gpu.model = &section_.model;
    return true;
  }

  bool setFigure(const Figure& figure, const char* value) {
    uint64_t thousandths;
    const char* unit;
    const bool isNumber = readNumber(value, &thousandths, &unit) && (!*unit || strcmp(unit, figure.unit) == 0);
    if (!isNumber || thousandths % figure.divisor || thousandths / figure.divisor > figure.most) {
      char what[64];
      const uint32_t most = static_cast<uint32_t>(uint64_t{figure.most} * figure.divisor / 1000);
      snprintf(what, sizeof what, "a number up to %u%s%s", most, *figure.unit ? " " : "", figure.unit);
      return expected(figure.key, value, what);
    }
    section_.model.*figure.member = static_cast<uint32_t>(thousandths / figure.divisor);
    return true;
  }

  bool setBus(const char* value) {
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
    section_.hasBus = true;
    return true;
  }

  bool readMemory(const char* key, const char* value, uint32_t least, uint32_t* mebibytes) {
    uint64_t bytes;
    if (!readSize(value, &bytes) || bytes % kMiB || bytes < least * kMiB)
      return expected(key, value, "whole MiB, as in 80GiB or 143771 MiB");
    *mebibytes = static_cast<uint32_t>(bytes / kMiB);
    return true;
  }

  bool setOther(const char* key, const char* value) {
    Gpu& gpu = section_.gpu;
    const auto is = [&](const char* other) { return strcmp(key, other) == 0; };
    if (is("memory")) {
      section_.hasMemory = true;
      return readMemory(key, value, 64, &section_.model.memoryMiB);
    }
    if (is("reserved")) return readMemory(key, value, 0, &section_.model.reservedMiB);
    if (is("used")) {
      section_.hasUsed = true;
      return readSize(value, &gpu.baseUsed) || expected(key, value, "a size, as in 4MiB");
    }
    if (is("count"))
      return (readCount(value, kMaxGpus, &section_.count) && section_.count > 0) ||
             expected(key, value, "how many such GPUs there are, 1 to 64");
    if (is("numa")) return readCount(value, 63, &gpu.numaNode) || expected(key, value, "a NUMA node, 0 to 63");
    if (is("uuid"))
      return (isUuid(value, "GPU-") && copy(gpu.uuid, value)) ||
             expected(key, value, "GPU-00000000-0000-4000-8000-000000000000 with digits of its own");
    if (is("display")) return readSwitch(key, value, &gpu.display);
    if (is("mig")) {
      if (strcmp(value, "none") == 0) {
        section_.model.migProfiles[0] = nullptr;
        return true;
      }
      if (!readSwitch(key, value, &gpu.mig)) return false;
      return !gpu.mig || gpu.canMig() || fail("mig = on: %s has no MIG", section_.name);
    }
    constexpr const char* kModes[] = {"default", "exclusive-thread", "prohibited", "exclusive-process"};
    for (uint32_t mode = 0; mode < std::size(kModes); ++mode)
      if (strcmp(value, kModes[mode]) == 0) {
        gpu.computeMode = mode;
        return true;
      }
    return expected(key, value, "default, exclusive-process, exclusive-thread or prohibited");
  }

  // "0 3g.40gb 2:0", and its UUID and its memory, if they aren't the usual ones; "none" for a GPU without any.
  bool addInstanceLine(char* value) {
    if (strcmp(value, "none") == 0) return section_.hasInstances = true;
    const char* what = "PLACE PROFILE ID:ID [MIG-UUID] [MEMORY], as in 0 3g.40gb 2:0";
    char shown[128];
    if (!copy(shown, value)) return expected("instance", "...", what);
    uint32_t place, gpuInstance, computeInstance;
    if (!readCount(takeWord(&value), kUnits - 2, &place)) return expected("instance", shown, what);
    MigInstance& instance = section_.gpu.instances[place];
    if (instance.present) return fail("instance %u is given twice; remove one", place);
    const char* profile = takeWord(&value);
    // The slices of the GPU instance, of "1c.3g.40gb", too.
    const char* slices = strchr(profile, 'g');
    if (!slices || slices == profile || slices[-1] < '1' || slices[-1] > '7' || slices[1] != '.' ||
        !copy(section_.profiles[place], profile))
      return expected("instance", shown, what);
    char* ids = takeWord(&value);
    char* colon = strchr(ids, ':');
    if (!colon) return expected("instance", shown, what);
    *colon = 0;
    if (!readCount(ids, 999, &gpuInstance) || !readCount(colon + 1, 999, &computeInstance))
      return expected("instance", shown, what);
    if (*value == 'M') {
      const char* uuid = takeWord(&value);
      section_.hasInstanceUuid[place] = isUuid(uuid, "MIG-") && copy(instance.uuid, uuid);
      if (!section_.hasInstanceUuid[place]) return expected("instance", shown, what);
    }
    if (*value) {
      section_.hasInstanceMemory[place] = true;
      if (!readSize(value, &instance.memory) || instance.memory < kMiB) return expected("instance", shown, what);
    }
    instance.present = true;
    instance.slices = static_cast<uint32_t>(slices[-1] - '0');
    instance.gpuInstanceId = gpuInstance;
    instance.computeInstanceId = computeInstance;
    section_.hasInstances = true;
    return true;
  }

  // "182 MiB", or with a name behind it: "182 MiB /usr/bin/gnome-shell".
  bool addGraphicsLine(char* value) {
    Gpu& gpu = section_.gpu;
    if (gpu.graphicsCount == kMaxGraphics) return fail("more than %u lines `graphics`; remove one", kMaxGraphics);
    char* name = strchr(value, '/');
    if (name && name > value) {
      if (!copy(section_.graphics[gpu.graphicsCount], name)) return expected("graphics", value, "a shorter name");
      char* end = name;
      while (end > value && end[-1] == ' ') --end;
      *end = 0;
    } else {
      copy(section_.graphics[gpu.graphicsCount], "/usr/lib/xorg/Xorg");
    }
    uint32_t mebibytes = 0;
    if (!readMemory("graphics", value, 0, &mebibytes)) return false;
    gpu.graphics[gpu.graphicsCount].pid = kFirstMadeUpPid + gpu.graphicsCount;
    gpu.graphics[gpu.graphicsCount].memoryMiB = mebibytes;
    ++gpu.graphicsCount;
    return true;
  }

  bool setUnsupported(char* value) {
    for (char* rest = value; *rest;) {
      char* word = rest;
      rest += strcspn(rest, ",");
      if (*rest) *rest++ = 0;
      word += strspn(word, " ");
      word[strcspn(word, " ")] = 0;
      unsigned call = 0;
      while (call < kCalls && strcmp(word, kCallNames[call]) != 0) ++call;
      if (call == kCalls) return fail("unsupported: no call %.40s; `gpu-owner simulate --help` lists the calls", word);
      section_.gpu.unsupported |= callBit(call);
    }
    return true;
  }

  // Checks that need the whole section; makes its GPUs.
  bool finishGpu() {
    Section& section = section_;
    if (!section.line) return true;
    const unsigned line = section.line;
    if (!section.name[0]) return failAt(line, "this [gpu] has no name; add a line `name = NVIDIA H200`");
    if (!section.isKnown && !section.hasMemory) {
      char reason[160];
      snprintf(reason, sizeof reason, "no model %s is known; give its memory, as in `memory = 80GiB`", section.name);
      return failAt(line, reason);
    }
    if (section.count > 1 && (section.hasBus || section.gpu.uuid[0] || section.hasInstances))
      return failAt(line, "bus, uuid and instance are those of one GPU: leave out `count`, and write a [gpu] for each");
    if (section.count > kMaxGpus - out_->gpuCount) return failAt(line, "more than 64 GPUs; remove some");
    if (section.hasInstances && !section.gpu.canMig()) return failAt(line, "it has instances, but no MIG");
    for (const MigInstance& instance : section.gpu.instances)
      if (instance.memory > section.gpu.total()) return failAt(line, "an instance has more memory than its GPU");
    Model& model = section.model;
    if (model.reservedMiB >= model.memoryMiB ||
        section.gpu.baseUsed > (uint64_t{model.memoryMiB} - model.reservedMiB) * kMiB)
      return failAt(line, "less memory than is reserved and used; correct `memory`, `reserved` or `used`");
    // Figures that nobody gave follow those that were given.
    model.lowestPowerLimitMw = std::min(model.lowestPowerLimitMw, model.powerLimitMw);
    model.highestPowerLimitMw = std::max(model.highestPowerLimitMw, model.powerLimitMw);
    model.busyPowerMw = std::min(model.busyPowerMw, model.powerLimitMw);
    model.busySmMhz = std::min(model.busySmMhz, model.smMhz);
    model.idleSmMhz = std::min(model.idleSmMhz, model.smMhz);
    model.idleMemoryMhz = std::min(model.idleMemoryMhz, model.memoryMhz);
    for (uint32_t i = 0; i < section.count; ++i)
      if (!makeGpu()) return false;
    section.line = 0;
    return true;
  }

  bool makeGpu() {
    const Section& section = section_;
    const Gpu& wanted = section.gpu;
    const uint32_t index = out_->gpuCount;
    const Gpu* before = index ? &out_->gpus[index - 1] : nullptr;
    FileTexts& own = out_->texts;
    memcpy(own.names[index], section.name, sizeof section.name);
    own.models[index] = section.model;
    own.models[index].name = own.names[index];
    const uint32_t domain = section.hasBus ? wanted.domain : before ? before->domain : 0;
    const uint32_t bus = section.hasBus ? wanted.bus : before ? before->bus + 1 : 1;
    const uint32_t slot = section.hasBus ? wanted.slot : 0;
    const auto place = [](uint64_t inDomain, uint64_t onBus, uint64_t inSlot) {
      return inDomain << 32 | onBus << 8 | inSlot;
    };
    if (bus > 255 || (before && place(domain, bus, slot) <= place(before->domain, before->bus, before->slot)))
      return failAt(section.line, "GPUs stand in the order of their buses, each on one of its own; correct `bus`");
    Gpu& gpu = addGpu(out_, own.models[index], bus);
    gpu.domain = domain;
    gpu.slot = slot;
    gpu.numaNode = wanted.numaNode;
    if (section.hasUsed) gpu.baseUsed = wanted.baseUsed;
    gpu.display = wanted.display;
    gpu.mig = wanted.mig;
    gpu.computeMode = wanted.computeMode;
    gpu.unsupported = wanted.unsupported;
    if (wanted.uuid[0]) memcpy(gpu.uuid, wanted.uuid, sizeof gpu.uuid);
    gpu.graphicsCount = wanted.graphicsCount;
    gpu.graphicsAlways = !gpu.display;
    memcpy(own.graphics[index], section.graphics, sizeof section.graphics);
    for (uint32_t i = 0; i < gpu.graphicsCount; ++i) {
      gpu.graphics[i] = wanted.graphics[i];
      gpu.graphics[i].name = own.graphics[index][i];
    }
    if (section.hasInstances) makeInstances(index);
    return true;
  }

  void makeInstances(uint32_t index) {
    FileTexts& own = out_->texts;
    memcpy(own.profiles[index], section_.profiles, sizeof section_.profiles);
    for (uint32_t place = 0; place < kUnits - 1; ++place) {
      const MigInstance& wanted = section_.gpu.instances[place];
      out_->gpus[index].instances[place].present = false;
      if (!wanted.present) continue;
      MigInstance& instance = addInstance(out_, index, place, wanted.slices, wanted.gpuInstanceId);
      instance.computeInstanceId = wanted.computeInstanceId;
      instance.profile = own.profiles[index][place];
      if (section_.hasInstanceUuid[place]) memcpy(instance.uuid, wanted.uuid, sizeof instance.uuid);
      if (section_.hasInstanceMemory[place]) instance.memory = wanted.memory;
    }
  }

  const char* path_;
  MachineDescription* out_;
  Error* error_;
  unsigned line_ = 0;
  uint64_t seen_ = 0;
  bool hasNvml_ = false;
  Section section_ = {};
};

// "my server.conf" is "my-server".
void baseName(const char* path, char (&out)[48]) {
  const char* slash = strrchr(path, '/');
  const char* name = slash ? slash + 1 : path;
  const char* point = strrchr(name, '.');
  const size_t length = point && point > name ? static_cast<size_t>(point - name) : strlen(name);
  size_t at = 0;
  for (; at < length && at < sizeof out - 1; ++at) {
    const char c = name[at];
    const bool isPlain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    out[at] = isPlain || (at > 0 && c == '.') ? c : '-';
  }
  out[at] = 0;
}

}  // namespace

bool parseMachineFile(const char* path, const char* text, size_t size, MachineDescription* out, Error* error) {
  uint32_t hash = 0x811c9dc5;  // FNV-1a
  for (size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<unsigned char>(text[i])) * 0x01000193;
  char base[48];
  baseName(path, base);
  // UUIDs are made from the name that it has meanwhile: they stay the same when the file is edited.
  beginMachine(base, out);
  out->wsl = strncmp(base, "wsl", 3) == 0;  // as lib/gpus/containers.ts has it
  if (!Parser(path, out, error).parse(text, text + size)) return false;
  snprintf(out->name, sizeof out->name, "%s-%08x", base, hash);
  return true;
}

bool describeMachineFile(const char* path, MachineDescription* out, Error* error) {
  const int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  struct stat facts;
  if (file < 0 || fstat(file, &facts) != 0) {
    const int reason = errno;
    if (file >= 0) close(file);
    return error->set("GPU_OWNER_SIMULATE=%.400s cannot be read: %s; name a file that describes a machine", path,
                      strerror(reason));
  }
  if (!S_ISREG(facts.st_mode) || facts.st_size > static_cast<off_t>(kMaxFileSize)) {
    close(file);
    return error->set("GPU_OWNER_SIMULATE=%.400s: not a file that describes a machine (a text of at most 64 KiB)",
                      path);
  }
  auto* text = static_cast<char*>(malloc(kMaxFileSize));
  const ssize_t size = text ? read(file, text, kMaxFileSize) : -1;
  const int reason = errno;
  close(file);
  const bool described = size >= 0 ? parseMachineFile(path, text, static_cast<size_t>(size), out, error)
                                   : error->set("GPU_OWNER_SIMULATE=%.400s cannot be read: %s", path, strerror(reason));
  free(text);
  return described;
}

}  // namespace simulator
