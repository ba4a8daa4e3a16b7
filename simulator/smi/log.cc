#include "simulator/smi/log.h"

#include <cstdio>

#include "simulator/smi/values.h"

namespace smi {
namespace {

enum class Form { text, xml };

// Prints groups and lines in one of two forms: nested names with the colons below each other, or elements. A line or
// group without a name in one form isn't in it.
class Writer {
 public:
  Writer(Form form, int depth) : form_(form), depth_(depth) {}

  template <typename Body>
  void group(const char* name, const char* tag, Body body) {
    const char* own = form_ == Form::text ? name : tag;
    if (own != nullptr) {
      if (form_ == Form::text)
        printf("%*s%s\n", depth_ * 4, "", own);
      else
        printf("%s<%s>\n", indent().c_str(), own);
      depth_++;
    }
    body();
    if (own == nullptr) return;
    depth_--;
    if (form_ == Form::xml) printf("%s</%s>\n", indent().c_str(), own);
  }

  void line(const char* name, const char* tag, const std::string& value, int deeper = 0) {
    if (form_ == Form::text && name != nullptr) {
      const int indented = (depth_ + deeper) * 4;
      printf("%*s%-*s: %s\n", indented, "", 42 - indented, name, value.c_str());
    } else if (form_ == Form::xml && tag != nullptr) {
      printf("%s<%s>%s</%s>\n", indent().c_str(), tag, escaped(value).c_str(), tag);
    }
  }
  void line(const char* name, const char* tag, const Value& value, const char* unit = "") {
    line(name, tag, value.is_known ? value.text + unit : value.text);
  }

  bool is_text() const { return form_ == Form::text; }
  std::string indent() const { return std::string(static_cast<size_t>(depth_ + 1), '\t'); }

 private:
  static std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) {
      switch (c) {
        case '&': out += "&amp;"; break;
        case '<': out += "&lt;"; break;
        case '>': out += "&gt;"; break;
        default: out += c;
      }
    }
    return out;
  }

  Form form_;
  int depth_;
};

const Value kNone = {};  // N/A
Value yes_no(const Value& number) { return number.is_known ? known(number.text == "0" ? "No" : "Yes") : number; }

void log_product(Writer& out, const Gpu& gpu) {
  out.line("Product Name", "product_name", text_of(gpu, "nvmlDeviceGetName"));
  out.line("Product Brand", "product_brand", product_brand(gpu));
  out.line("Product Architecture", "product_architecture", architecture(gpu));
  out.line("Display Mode", "display_mode", enabled_of(gpu, "nvmlDeviceGetDisplayMode"));
  out.line("Display Active", "display_active", enabled_of(gpu, "nvmlDeviceGetDisplayActive"));
  out.line("Persistence Mode", "persistence_mode", enabled_of(gpu, "nvmlDeviceGetPersistenceMode"));
  out.line("Addressing Mode", "addressing_mode", known("None"));
  out.group("MIG Mode", "mig_mode", [&] {
    out.line("Current", "current_mig", mig_mode(gpu, false));
    out.line("Pending", "pending_mig", mig_mode(gpu, true));
  });
}

// The program has two names for the group of BAR1.
void log_memory_use(Writer& out, const Gpu& gpu, const char* bar1_name) {
  out.group("FB Memory Usage", "fb_memory_usage", [&] {
    out.line("Total", "total", memory(gpu, &MemoryUse::total), " MiB");
    out.line("Reserved", "reserved", memory(gpu, &MemoryUse::reserved), " MiB");
    out.line("Used", "used", memory(gpu, &MemoryUse::used), " MiB");
    out.line("Free", "free", memory(gpu, &MemoryUse::free), " MiB");
  });
  out.group(bar1_name, "bar1_memory_usage", [&] {
    out.line("Total", "total", bar1(gpu, &Bar1::total), " MiB");
    out.line("Used", "used", bar1(gpu, &Bar1::used), " MiB");
    out.line("Free", "free", bar1(gpu, &Bar1::free), " MiB");
  });
}

void log_instance(Writer& out, const Gpu& whole, const Instance& instance) {
  const auto number = [](unsigned count) { return known(std::to_string(count)); };
  const Gpu gpu = {instance.slot, instance.device, ""};
  out.line("Index", "index", number(instance.slot));
  out.line("GPU Instance ID", "gpu_instance_id", number(instance.gpu_instance));
  out.line("Compute Instance ID", "compute_instance_id", number(instance.compute_instance));
  const auto attributes = ask<nvmlDeviceAttributes_t>("nvmlDeviceGetAttributes_v2", instance.device).value;
  out.group("Device Attributes", "device_attributes", [&] {
    out.group("Shared", "shared", [&] {
      out.line("Multiprocessor count", "multiprocessor_count", number(attributes.multiprocessorCount));
      out.line("Copy Engine count", "copy_engine_count", number(attributes.sharedCopyEngineCount));
      out.line("Encoder count", "encoder_count", number(attributes.sharedEncoderCount));
      out.line("Decoder count", "decoder_count", number(attributes.sharedDecoderCount));
      out.line("OFA count", "ofa_count", number(attributes.sharedOfaCount));
      out.line("JPG count", "jpg_count", number(attributes.sharedJpegCount));
    });
  });
  out.group("ECC Errors", "ecc_error_count", [&] {
    constexpr unsigned kSram = 7;
    out.group("Volatile", "volatile_count",
              [&] { out.line("SRAM Uncorrectable", "sram_uncorrectable", ecc_errors_at(whole, 1, 0, kSram)); });
  });
  log_memory_use(out, gpu, "BAR1 Memory");
}

void log_instances(Writer& out, const Gpu& gpu) {
  const std::vector<Instance> instances = instances_of(gpu);
  if (out.is_text()) {
    for (const Instance& instance : instances)
      out.group("MIG Device", nullptr, [&] { log_instance(out, gpu, instance); });
    return;
  }
  printf("%s<mig_devices>\n", out.indent().c_str());
  if (instances.empty()) printf("%s\tNone\n", out.indent().c_str());
  for (const Instance& instance : instances)
    out.group(nullptr, "mig_device", [&] { log_instance(out, gpu, instance); });
  printf("%s</mig_devices>\n", out.indent().c_str());
}

void log_accounting_mode(Writer& out, const Gpu& gpu) {
  out.line("Accounting Mode", "accounting_mode", enabled_of(gpu, "nvmlDeviceGetAccountingMode"));
  out.line("Accounting Mode Buffer Size", "accounting_mode_buffer_size",
           number_of(gpu, "nvmlDeviceGetAccountingBufferSize"));
}

void log_board(Writer& out, const Gpu& gpu) {
  out.group("Driver Model", "driver_model", [&] {
    out.line("Current", "current_dm", driver_model(gpu, false));
    out.line("Pending", "pending_dm", driver_model(gpu, true));
  });
  out.line("Serial Number", "serial", text_of(gpu, "nvmlDeviceGetSerial"));
  out.line("GPU UUID", "uuid", text_of(gpu, "nvmlDeviceGetUUID"));
  out.line("Minor Number", "minor_number", number_of(gpu, "nvmlDeviceGetMinorNumber"));
  out.line("VBIOS Version", "vbios_version", text_of(gpu, "nvmlDeviceGetVbiosVersion"));
  out.line("MultiGPU Board", "multigpu_board", multi_gpu_board(gpu));
  out.line("Board ID", "board_id", board_id(gpu));
  out.line("Board Part Number", "board_part_number", text_of(gpu, "nvmlDeviceGetBoardPartNumber"));
  out.line("GPU Part Number", "gpu_part_number", kNone);
  out.line("FRU Part Number", "gpu_fru_part_number", kNone);
  out.line("Module ID", "gpu_module_id", number_of(gpu, "nvmlDeviceGetModuleId"));
  out.group("Inforom Version", "inforom_version", [&] {
    out.line("Image Version", "img_version", text_of(gpu, "nvmlDeviceGetInforomImageVersion"));
    out.line("OEM Object", "oem_object", inforom(gpu, 0));
    out.line("ECC Object", "ecc_object", inforom(gpu, 1));
    out.line("Power Management Object", "pwr_object", inforom(gpu, 2));
  });
  out.group("Inforom BBX Object Flush", "inforom_bbx_flush", [&] {
    out.line("Latest Timestamp", "latest_timestamp", kNone);
    out.line("Latest Duration", "latest_duration", kNone);
  });
  out.group("GPU Operation Mode", "gpu_operation_mode", [&] {
    out.line("Current", "current_gom", kNone);
    out.line("Pending", "pending_gom", kNone);
  });
  out.line("GPU C2C Mode", "c2c_mode", kNone);
  out.group("GPU Virtualization Mode", "gpu_virtualization_mode", [&] {
    out.line("Virtualization Mode", "virtualization_mode", virtualization_mode(gpu));
    out.line("Host VGPU Mode", "host_vgpu_mode", kNone);
    out.line("vGPU Heterogeneous Mode", "vgpu_heterogeneous_mode", kNone);
  });
}

void log_reset_status(Writer& out, const Gpu&) {
  out.group("GPU Reset Status", "gpu_reset_status", [&] {
    out.line("Reset Required", "reset_required", kNone);
    out.line("Drain and Reset Recommended", "drain_and_reset_recommended", kNone);
  });
}

void log_gsp_firmware(Writer& out, const Gpu& gpu) {
  char version[80] = "";
  const nvmlReturn_t code = call("nvmlDeviceGetGspFirmwareVersion", gpu.device, &version[0]);
  out.line("GSP Firmware Version", "gsp_firmware_version", code == NVML_SUCCESS ? known(version) : missing(code));
}

void log_pci(Writer& out, const Gpu& gpu) {
  out.group("IBMNPU", "ibmnpu", [&] { out.line("Relaxed Ordering Mode", "relaxed_ordering_mode", kNone); });
  const auto part = [&](const char* name, const char* tag, PciPart part, int digits) {
    const Value value = pci(gpu, part, digits);
    out.line(name, tag, out.is_text() && value.is_known ? known("0x" + value.text) : value);
  };
  out.group("PCI", "pci", [&] {
    part("Bus", "pci_bus", PciPart::bus, 2);
    part("Device", "pci_device", PciPart::device, 2);
    part("Domain", "pci_domain", PciPart::domain, 4);
    part("Base Classcode", "pci_base_class", PciPart::base_class, 1);
    part("Sub Classcode", "pci_sub_class", PciPart::sub_class, 1);
    part("Device Id", "pci_device_id", PciPart::device_id, 8);
    out.line("Bus Id", "pci_bus_id", known(gpu.bus_id));
    part("Sub System Id", "pci_sub_system_id", PciPart::sub_system_id, 8);
    out.group("GPU Link Info", "pci_gpu_link_info", [&] {
      const Value most = number_of(gpu, "nvmlDeviceGetMaxPcieLinkGeneration");
      const Value current = number_of(gpu, "nvmlDeviceGetCurrPcieLinkGeneration");
      out.group("PCIe Generation", "pcie_gen", [&] {
        out.line("Max", "max_link_gen", most);
        out.line("Current", "current_link_gen", current);
        out.line("Device Current", "device_current_link_gen", current);
        out.line("Device Max", "max_device_link_gen", number_of(gpu, "nvmlDeviceGetGpuMaxPcieLinkGeneration"));
        out.line("Host Max", "max_host_link_gen", most);
      });
      out.group("Link Width", "link_widths", [&] {
        out.line("Max", "max_link_width", number_of(gpu, "nvmlDeviceGetMaxPcieLinkWidth"), "x");
        out.line("Current", "current_link_width", number_of(gpu, "nvmlDeviceGetCurrPcieLinkWidth"), "x");
      });
    });
    out.group("Bridge Chip", "pci_bridge_chip", [&] {
      out.line("Type", "bridge_chip_type", kNone);
      out.line("Firmware", "bridge_chip_fw", kNone);
    });
    out.line("Replays Since Reset", "replay_counter", number_of(gpu, "nvmlDeviceGetPcieReplayCounter"));
    out.line("Replay Number Rollovers", "replay_rollover_counter", kNone);
    out.line("Tx Throughput", "tx_util", pcie_throughput(gpu, false), " KB/s");
    out.line("Rx Throughput", "rx_util", pcie_throughput(gpu, true), " KB/s");
    out.line("Atomic Caps Inbound", "atomic_caps_inbound", kNone);
    out.line("Atomic Caps Outbound", "atomic_caps_outbound", kNone);
  });
  out.line("Fan Speed", "fan_speed", number_of(gpu, "nvmlDeviceGetFanSpeed"), " %");
}

void log_performance(Writer& out, const Gpu& gpu) {
  out.line("Performance State", "performance_state", performance_state(gpu));
  const auto supported = supported_clock_reasons(gpu);
  if (supported) {
    const auto active = clock_reasons(gpu);
    out.group("Clocks Event Reasons", "clocks_event_reasons", [&] {
      for (size_t at = 0; at < kClockReasonCount; at++) {
        const ClockReason& reason = kClockReasons[at];
        const char* state = (supported.value & reason.bit) == 0 ? "N/A"
                            : (active.value & reason.bit) != 0  ? "Active"
                                                                : "Not Active";
        out.line(reason.text, (std::string("clocks_event_reason_") + reason.name).c_str(), std::string(state),
                 reason.depth);
      }
    });
  } else {
    out.line("Clocks Event Reasons", "clocks_event_reasons", missing(supported.code));
  }
  out.line("Sparse Operation Mode", "sparse_operation_mode", known("Disabled"));
}

void log_memory(Writer& out, const Gpu& gpu) {
  log_memory_use(out, gpu, "BAR1 Memory Usage");
  out.group("Conf Compute Protected Memory Usage", "cc_protected_memory_usage", [&] {
    out.line("Total", "total", kNone);
    out.line("Used", "used", kNone);
    out.line("Free", "free", kNone);
  });
}

void log_compute_mode(Writer& out, const Gpu& gpu) { out.line("Compute Mode", "compute_mode", compute_mode_of(gpu)); }

void log_utilization(Writer& out, const Gpu& gpu) {
  out.group("Utilization", "utilization", [&] {
    out.line("Gpu", "gpu_util", utilization(gpu, false), " %");
    out.line("Memory", "memory_util", utilization(gpu, true), " %");
    out.line("Encoder", "encoder_util", engine_utilization(gpu, "nvmlDeviceGetEncoderUtilization"), " %");
    out.line("Decoder", "decoder_util", engine_utilization(gpu, "nvmlDeviceGetDecoderUtilization"), " %");
    out.line("JPEG", "jpeg_util", engine_utilization(gpu, "nvmlDeviceGetJpgUtilization"), " %");
    out.line("OFA", "ofa_util", engine_utilization(gpu, "nvmlDeviceGetOfaUtilization"), " %");
  });
}

// The driver's memory of readings isn't simulated.
void log_samples(Writer& out, const char* name) {
  out.group(name, nullptr, [&] {
    for (const char* line : {"Duration", "Number of Samples", "Max", "Min", "Avg"}) out.line(line, nullptr, kNone);
  });
}
void log_utilization_samples(Writer& out, const Gpu&) {
  for (const char* name : {"GPU", "Memory", "ENC", "DEC", "JPG", "OFA"})
    log_samples(out, (std::string(name) + " Utilization Samples").c_str());
}

void log_sessions(Writer& out, const char* name, const char* tag, const SessionStats& stats) {
  out.group(name, tag, [&] {
    out.line("Active Sessions", "session_count", stats.sessions);
    out.line("Average FPS", "average_fps", stats.frames_per_second);
    out.line("Average Latency", "average_latency", stats.latency);
  });
}
void log_encoder(Writer& out, const Gpu& gpu) {
  log_sessions(out, "Encoder Stats", "encoder_stats", encoder_stats(gpu));
}
void log_frame_buffer_capture(Writer& out, const Gpu& gpu) {
  log_sessions(out, "FBC Stats", "fbc_stats", frame_buffer_capture_stats(gpu));
}

// Cards before Turing count errors by part of the GPU, later ones by kind of memory, and those after Turing tell more
// of them.
enum class EccDetail { parts, memories, causes };
EccDetail ecc_detail_of(const Gpu& gpu) {
  constexpr unsigned kTuring = 6;
  const auto number = ask<unsigned>("nvmlDeviceGetArchitecture", gpu.device);
  if (!number || number.value > kTuring) return EccDetail::causes;
  return number.value < kTuring ? EccDetail::parts : EccDetail::memories;
}

void log_ecc_parts(Writer& out, const Gpu& gpu, unsigned counter) {
  constexpr struct {
    const char* name;
    const char* tag;
    unsigned place;
  } kPlaces[] = {{"Device Memory", "device_memory", 2},
                 {"Register File", "register_file", 3},
                 {"L1 Cache", "l1_cache", 0},
                 {"L2 Cache", "l2_cache", 1},
                 {"Texture Memory", "texture_memory", 4},
                 {"Texture Shared", "texture_shm", 5},
                 {"CBU", "cbu", 6}};
  for (unsigned type = 0; type < 2; type++) {
    out.group(type == 0 ? "Single Bit            " : "Double Bit            ", type == 0 ? "single_bit" : "double_bit",
              [&] {
                for (const auto& place : kPlaces)
                  out.line(place.name, place.tag, ecc_errors_at(gpu, type, counter, place.place));
                out.line("Total", "total", ecc_errors(gpu, type, counter));
              });
  }
}

void log_ecc_memories(Writer& out, const Gpu& gpu, unsigned counter, bool with_causes) {
  constexpr unsigned kDeviceMemory = 2;
  out.line("SRAM Correctable", "sram_correctable", kNone);
  if (with_causes) {
    out.line("SRAM Uncorrectable Parity", "sram_uncorrectable_parity", kNone);
    out.line("SRAM Uncorrectable SEC-DED", "sram_uncorrectable_secded", kNone);
  } else {
    out.line("SRAM Uncorrectable", "sram_uncorrectable", kNone);
  }
  out.line("DRAM Correctable", "dram_correctable", ecc_errors_at(gpu, 0, counter, kDeviceMemory));
  out.line("DRAM Uncorrectable", "dram_uncorrectable", ecc_errors_at(gpu, 1, counter, kDeviceMemory));
  if (with_causes && counter == 1) out.line("SRAM Threshold Exceeded", "sram_threshold_exceeded", kNone);
}

void log_ecc(Writer& out, const Gpu& gpu) {
  out.group("ECC Mode", "ecc_mode", [&] {
    out.line("Current", "current_ecc", ecc_mode(gpu, false));
    out.line("Pending", "pending_ecc", ecc_mode(gpu, true));
  });
  const EccDetail detail = ecc_detail_of(gpu);
  out.group("ECC Errors", "ecc_errors", [&] {
    for (unsigned counter = 0; counter < 2; counter++) {
      out.group(counter == 0 ? "Volatile" : "Aggregate", counter == 0 ? "volatile" : "aggregate", [&] {
        if (detail == EccDetail::parts)
          log_ecc_parts(out, gpu, counter);
        else
          log_ecc_memories(out, gpu, counter, detail == EccDetail::causes);
      });
    }
    if (detail != EccDetail::causes) return;
    out.group("Aggregate Uncorrectable SRAM Sources", "aggregate_uncorrectable_sram_sources", [&] {
      out.line("SRAM L2", "sram_l2", kNone);
      out.line("SRAM SM", "sram_sm", kNone);
      out.line("SRAM Microcontroller", "sram_microcontroller", kNone);
      out.line("SRAM PCIE", "sram_pcie", kNone);
      out.line("SRAM Other", "sram_other", kNone);
    });
  });
}

void log_retired_pages(Writer& out, const Gpu& gpu) {
  out.group("Retired Pages", "retired_pages", [&] {
    for (unsigned cause = 0; cause < 2; cause++) {
      const Value count = retired_pages(gpu, cause);
      out.line(cause == 0 ? "Single Bit ECC" : "Double Bit ECC", nullptr, count);
      out.group(nullptr, cause == 0 ? "multiple_single_bit_retirement" : "double_bit_retirement", [&] {
        out.line(nullptr, "retired_count", count);
        if (count.is_known)
          out.group(nullptr, "retired_pagelist", [] {});
        else
          out.line(nullptr, "retired_pagelist", count);
      });
    }
    const Value pending = retirement_pending(gpu);
    out.line("Pending Page Blacklist", "pending_blacklist", pending);
    out.line(nullptr, "pending_retirement", pending);
  });
}

void log_remapped_rows(Writer& out, const Gpu& gpu) {
  const RemappedRows rows = remapped_rows(gpu);
  if (!rows.corrected.is_known) {
    out.line("Remapped Rows", "remapped_rows", rows.corrected);
    return;
  }
  out.group("Remapped Rows", "remapped_rows", [&] {
    out.line("Correctable Error", "remapped_row_corr", rows.corrected);
    out.line("Uncorrectable Error", "remapped_row_unc", rows.uncorrected);
    out.line("Pending", "remapped_row_pending", yes_no(rows.pending));
    out.line("Remapping Failure Occurred", "remapped_row_failure", yes_no(rows.failed));
    const auto banks = ask<nvmlRowRemapperHistogramValues_t>("nvmlDeviceGetRowRemapperHistogram", gpu.device);
    const auto line = [&](const char* name, const char* tag, unsigned nvmlRowRemapperHistogramValues_t::* part) {
      out.line(name, tag, banks ? known(std::to_string(banks.value.*part)) : missing(banks.code), " bank(s)");
    };
    out.group("Bank Remap Availability Histogram", "row_remapper_histogram", [&] {
      line("Max", "row_remapper_histogram_max", &nvmlRowRemapperHistogramValues_t::max);
      line("High", "row_remapper_histogram_high", &nvmlRowRemapperHistogramValues_t::high);
      line("Partial", "row_remapper_histogram_partial", &nvmlRowRemapperHistogramValues_t::partial);
      line("Low", "row_remapper_histogram_low", &nvmlRowRemapperHistogramValues_t::low);
      line("None", "row_remapper_histogram_none", &nvmlRowRemapperHistogramValues_t::none);
    });
  });
}

void log_temperature(Writer& out, const Gpu& gpu) {
  const Answer<int> margin = temperature_margin(gpu);
  // Cards that know the distance to their limit tell other limits as distances from it.
  const auto limit = [&](const char* name, const char* tag, unsigned field, const char* plain_name,
                         const char* plain_tag, unsigned threshold) {
    if (margin)
      out.line(name, tag, temperature_limit(gpu, field), " C");
    else
      out.line(plain_name, plain_tag, temperature_threshold(gpu, threshold), " C");
  };
  out.group("Temperature", "temperature", [&] {
    out.line("GPU Current Temp", "gpu_temp", temperature(gpu), " C");
    out.line("GPU T.Limit Temp", "gpu_temp_tlimit", number(margin), " C");
    limit("GPU Shutdown T.Limit Temp", "gpu_temp_max_tlimit_threshold", 193, "GPU Shutdown Temp",
          "gpu_temp_max_threshold", 0);
    limit("GPU Slowdown T.Limit Temp", "gpu_temp_slow_tlimit_threshold", 194, "GPU Slowdown Temp",
          "gpu_temp_slow_threshold", 1);
    limit("GPU Max Operating T.Limit Temp", "gpu_temp_max_gpu_tlimit_threshold", 196, "GPU Max Operating Temp",
          "gpu_temp_max_gpu_threshold", 3);
    out.line("GPU Target Temperature", "gpu_target_temperature", kNone);
    out.line("Memory Current Temp", "memory_temp", memory_temperature(gpu), " C");
    limit("Memory Max Operating T.Limit Temp", "gpu_temp_max_mem_tlimit_threshold", 195, "Memory Max Operating Temp",
          "gpu_temp_max_mem_threshold", 2);
  });
}

void log_target_temperatures(Writer& out, const Gpu&) {
  out.group("Supported GPU_TARGET_TEMP", "supported_gpu_target_temp", [&] {
    out.line("Min", "gpu_target_temp_min", kNone);
    out.line("Max", "gpu_target_temp_max", kNone);
  });
}

// Fields of NVML, for the GPU, for the module that it is on and for its memory.
constexpr unsigned kGpuScope = 0, kModuleScope = 1, kMemoryScope = 2;

void log_power_draw(Writer& out, const Gpu& gpu, unsigned scope) {
  out.line("Average Power Draw", "average_power_draw", power_field(gpu, 185, scope), " W");
  out.line("Instantaneous Power Draw", "instant_power_draw", power_field(gpu, 186, scope), " W");
}

void log_power_readings(Writer& out, const Gpu& gpu, const char* name, const char* tag, unsigned scope) {
  out.group(name, tag, [&] {
    out.line(nullptr, "power_state", performance_state(gpu));
    log_power_draw(out, gpu, scope);
    out.line("Current Power Limit", "current_power_limit", power_field(gpu, 190, scope), " W");
    out.line("Requested Power Limit", "requested_power_limit", power_field(gpu, 192, scope), " W");
    out.line("Default Power Limit", "default_power_limit", power_field(gpu, 189, scope), " W");
    out.line("Min Power Limit", "min_power_limit", power_field(gpu, 187, scope), " W");
    out.line("Max Power Limit", "max_power_limit", power_field(gpu, 188, scope), " W");
  });
}

void log_power(Writer& out, const Gpu& gpu) {
  log_power_readings(out, gpu, "GPU Power Readings", "gpu_power_readings", kGpuScope);
}
void log_power_samples(Writer& out, const Gpu&) { log_samples(out, "Power Samples"); }
void log_other_power(Writer& out, const Gpu& gpu) {
  out.group("GPU Memory Power Readings ", "gpu_memory_power_readings", [&] { log_power_draw(out, gpu, kMemoryScope); });
  log_power_readings(out, gpu, "Module Power Readings", "module_power_readings", kModuleScope);
}

void log_clocks(Writer& out, const Gpu& gpu) {
  const auto four = [&](const char* name, const char* tag, const char* function) {
    out.group(name, tag, [&] {
      out.line("Graphics", "graphics_clock", clock(gpu, function, Clock::graphics), " MHz");
      out.line("SM", "sm_clock", clock(gpu, function, Clock::sm), " MHz");
      out.line("Memory", "mem_clock", clock(gpu, function, Clock::memory), " MHz");
      out.line("Video", "video_clock", clock(gpu, function, Clock::video), " MHz");
    });
  };
  const auto two = [&](const char* name, const char* tag, const char* function) {
    out.group(name, tag, [&] {
      out.line("Graphics", "graphics_clock", clock(gpu, function, Clock::graphics), " MHz");
      out.line("Memory", "mem_clock", clock(gpu, function, Clock::memory), " MHz");
    });
  };
  four("Clocks", "clocks", "nvmlDeviceGetClockInfo");
  two("Applications Clocks", "applications_clocks", "nvmlDeviceGetApplicationsClock");
  two("Default Applications Clocks", "default_applications_clocks", "nvmlDeviceGetDefaultApplicationsClock");
  out.group("Deferred Clocks", "deferred_clocks", [&] { out.line("Memory", "mem_clock", kNone); });
  four("Max Clocks", "max_clocks", "nvmlDeviceGetMaxClockInfo");
  out.group("Max Customer Boost Clocks", "max_customer_boost_clocks",
            [&] { out.line("Graphics", "graphics_clock", customer_boost_clock(gpu), " MHz"); });
}
void log_clock_samples(Writer& out, const Gpu&) {
  log_samples(out, "SM Clock Samples");
  log_samples(out, "Memory Clock Samples");
}
void log_clock_policy(Writer& out, const Gpu&) {
  out.group("Clock Policy", "clock_policy", [&] {
    out.line("Auto Boost", "auto_boost", kNone);
    out.line("Auto Boost Default", "auto_boost_default", kNone);
  });
}

void log_voltage(Writer& out, const Gpu&) {
  out.group("Voltage", "voltage", [&] { out.line("Graphics", "graphics_volt", kNone); });
}

void log_fabric(Writer& out, const Gpu&) {
  out.group("Fabric", "fabric", [&] {
    out.line("State", "state", kNone);
    out.line("Status", "status", kNone);
    out.line("CliqueId", "cliqueId", kNone);
    out.line("ClusterUUID", "clusterUuid", kNone);
    out.group("Health", "health", [&] { out.line("Bandwidth", "bandwidth", kNone); });
  });
}

void log_supported_clocks(Writer& out, const Gpu& gpu) {
  const std::vector<unsigned> memory_clocks = supported_memory_clocks(gpu);
  if (memory_clocks.empty()) {
    out.line("Supported Clocks", "supported_clocks", kNone);
    return;
  }
  out.group("Supported Clocks", "supported_clocks", [&] {
    for (const unsigned memory_clock : memory_clocks) {
      const Value value = known(std::to_string(memory_clock));
      out.line("Memory", nullptr, value, " MHz");
      out.group(nullptr, "supported_mem_clock", [&] {
        out.line(nullptr, "value", value, " MHz");
        for (const unsigned clock : supported_graphics_clocks(gpu, memory_clock))
          out.line("Graphics", "supported_graphics_clock", std::to_string(clock) + " MHz", 1);
      });
    }
  });
}

void log_processes(Writer& out, const Gpu& gpu) {
  const std::vector<Process> processes = processes_of(gpu, false);
  if (processes.empty() && out.is_text()) {
    out.line("Processes", nullptr, known("None"));
    return;
  }
  const auto instance = [](uint32_t id) { return id == kNoInstance ? Value() : known(std::to_string(id)); };
  out.group("Processes", "processes", [&] {
    for (const Process& process : processes) {
      out.group(nullptr, "process_info", [&] {
        out.line("GPU instance ID", "gpu_instance_id", instance(process.gpu_instance));
        out.line("Compute instance ID", "compute_instance_id", instance(process.compute_instance));
        out.line("Process ID", "pid", std::to_string(process.pid));
        const std::string used = process.bytes_known ? std::to_string(process.bytes >> 20) + " MiB" : "N/A";
        out.line("Type", "type", process.type, 1);
        out.line("Name", "process_name", process.name, 1);
        out.line("Used GPU Memory", "used_memory", used, 1);
      });
    }
  });
}

// Accounting is off on simulated machines.
void log_accounted_processes(Writer& out, const Gpu& gpu) {
  const Value mode = enabled_of(gpu, "nvmlDeviceGetAccountingMode");
  if (!mode.is_known)
    out.line("Accounted Processes", "accounted_processes", mode);
  else if (out.is_text())
    out.line("Accounted Processes", nullptr, known("None"));
  else
    out.group(nullptr, "accounted_processes", [] {});
}

// Parts of the log, in its order.
constexpr unsigned kAlways = 0, kOnlyXml = 1, kOnlyAlone = 2;  // when no section is chosen
constexpr struct Part {
  const char* section;  // null: a part without a name, in the whole log only
  void (*print)(Writer&, const Gpu&);
  unsigned unchosen;
} kParts[] = {
    {nullptr, log_product, kAlways},
    {nullptr, log_instances, kAlways},
    {"ACCOUNTING", log_accounting_mode, kAlways},
    {nullptr, log_board, kAlways},
    {"RESET_STATUS", log_reset_status, kAlways},
    {"GSP_FIRMWARE_VERSION", log_gsp_firmware, kAlways},
    {nullptr, log_pci, kAlways},
    {"PERFORMANCE", log_performance, kAlways},
    {"MEMORY", log_memory, kAlways},
    {"COMPUTE", log_compute_mode, kAlways},
    {"UTILIZATION", log_utilization, kAlways},
    {"UTILIZATION", log_utilization_samples, kOnlyAlone},
    {"ENCODER_STATS", log_encoder, kAlways},
    {"FBC_STATS", log_frame_buffer_capture, kAlways},
    {"ECC", log_ecc, kAlways},
    {"PAGE_RETIREMENT", log_retired_pages, kAlways},
    {"ROW_REMAPPER", log_remapped_rows, kAlways},
    {"TEMPERATURE", log_temperature, kAlways},
    {"SUPPORTED_GPU_TARGET_TEMP", log_target_temperatures, kOnlyXml},
    {"POWER", log_power, kAlways},
    {"POWER", log_power_samples, kOnlyAlone},
    {"POWER", log_other_power, kAlways},
    {"CLOCK", log_clocks, kAlways},
    {"CLOCK", log_clock_samples, kOnlyAlone},
    {"CLOCK", log_clock_policy, kAlways},
    {"VOLTAGE", log_voltage, kAlways},
    {nullptr, log_fabric, kAlways},
    {"SUPPORTED_CLOCKS", log_supported_clocks, kOnlyXml},
    {"PIDS", log_processes, kAlways},
    {"ACCOUNTING", log_accounted_processes, kOnlyXml},
};

bool is_printed(const Part& part, Form form, const std::string& sections) {
  if (!sections.empty()) return part.section != nullptr && is_listed(part.section, sections);
  return part.unchosen == kAlways || (part.unchosen == kOnlyXml && form == Form::xml);
}

void log_driver(Writer& out) {
  out.line("Timestamp", "timestamp", date());
  out.line("Driver Version", "driver_version", driver_version());
  out.line("CUDA Version", "cuda_version", cuda_version());
  if (out.is_text()) printf("\n");
  out.line("Attached GPUs", "attached_gpus", std::to_string(gpu_count()));
}

void log_gpu(Form form, const Gpu& gpu, const std::string& sections) {
  Writer out(form, 1);
  for (const Part& part : kParts) {
    if (is_printed(part, form, sections)) part.print(out, gpu);
  }
}

}  // namespace

bool are_sections(const std::string& sections) {
  for (size_t start = 0; start <= sections.size();) {
    size_t end = sections.find(',', start);
    if (end == std::string::npos) end = sections.size();
    const std::string section = sections.substr(start, end - start);
    bool is_one = false;
    for (const Part& part : kParts) is_one = is_one || (part.section != nullptr && section == part.section);
    if (!is_one) {
      printf("Failed to parse --display/-d flags\n");
      return false;
    }
    start = end + 1;
  }
  return true;
}

void print_log(const std::vector<Gpu>& gpus, const std::string& sections) {
  printf("\n==============NVSMI LOG==============\n\n");
  Writer out(Form::text, 0);
  log_driver(out);
  for (const Gpu& gpu : gpus) {
    printf("GPU %s\n", gpu.bus_id.c_str());
    log_gpu(Form::text, gpu, sections);
    printf("\n");
  }
}

void print_xml_log(const std::vector<Gpu>& gpus) {
  printf("<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n<nvidia_smi_log>\n");
  Writer out(Form::xml, 0);
  log_driver(out);
  for (const Gpu& gpu : gpus) {
    printf("\t<gpu id=\"%s\">\n", gpu.bus_id.c_str());
    log_gpu(Form::xml, gpu, "");
    printf("\t</gpu>\n\n");
  }
  printf("</nvidia_smi_log>\n");
}

}  // namespace smi
