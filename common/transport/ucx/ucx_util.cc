#include "common/transport/ucx/ucx_util.h"

#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>
#include <xxhash.h>

#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"

namespace baton::ucx {
namespace {

constexpr std::string_view kAddressMark = "BTNUCX1:";
constexpr size_t kMaxAddressBytes = 2048;

// UCX's own errors go to our log; its warnings do not: one of them dumps payloads.
ucs_log_func_rc_t ForwardLog(const char* file, unsigned line, const char* function,
                             ucs_log_level_t level, const ucs_log_component_config_t* component,
                             const char* format, va_list args) {
  if (level > UCS_LOG_LEVEL_ERROR) return UCS_LOG_FUNC_RC_STOP;
  char text[512];
  va_list copy;
  va_copy(copy, args);
  vsnprintf(text, sizeof(text), format, copy);
  va_end(copy);
  BATON_LOG_EVERY_SEC(1, "ucx: {}", text);
  // A fatal message ends the process inside UCX; let it say so in its own way too.
  return level == UCS_LOG_LEVEL_FATAL ? UCS_LOG_FUNC_RC_CONTINUE : UCS_LOG_FUNC_RC_STOP;
}

// Process-wide, once: logs, and no signal handlers of UCX's in a process that has its own.
void ConfigureLibrary() {
  static std::once_flag once;
  std::call_once(once, [] {
    ucs_global_opts_set_value("LOG_LEVEL", "error");
    ucs_global_opts_set_value("HANDLE_ERRORS", "none");
    for (int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) ucs_debug_disable_signal(signal);
    ucs_log_push_handler(ForwardLog);
  });
}

std::string Seconds(absl::Duration duration) {
  return absl::StrCat(absl::ToInt64Milliseconds(duration), "ms");
}

}  // namespace

absl::Status FromUcs(ucs_status_t status, std::string_view what) {
  return absl::UnavailableError(fmt::format("{}: {}", what, ucs_status_string(status)));
}

std::string VersionString() {
  unsigned major, minor, release;
  ucp_get_version(&major, &minor, &release);
  return absl::StrCat("ucx ", major, ".", minor, ".", release);
}

absl::StatusOr<Context> CreateContext(const UcxOptions& options) {
  ConfigureLibrary();
  ucp_config_t* raw = nullptr;
  if (ucs_status_t s = ucp_config_read(nullptr, nullptr, &raw); s != UCS_OK) {
    return absl::InvalidArgumentError(
        absl::StrCat("UCX can't read its UCX_* environment variables: ", ucs_status_string(s)));
  }
  std::unique_ptr<ucp_config_t, decltype(&ucp_config_release)> config(raw, &ucp_config_release);

  std::vector<std::pair<std::string, std::string>> settings = {
      {"TLS", absl::StrJoin(options.tls, ",")},
      // Without it peer error handling silently turns shared memory into TCP.
      // 1.13 knows this and CONN_NB by the first of the names only, when set from a program.
      {"MM_ERROR_HANDLING", "y"},
      {"POSIX_ERROR_HANDLING", "y"},
      // A blocking connect() would hold up every peer; and with one, 1.13 loses a descriptor when
      // it is refused and trips an assertion of its own when the other side dies right after it.
      {"CONN_NB", "y"},
      {"TCP_CONN_NB", "y"},
      {"KEEPALIVE_INTERVAL", Seconds(options.keepalive)},
      {"NET_DEVICES",
       options.net_devices.empty() ? "all" : absl::StrJoin(options.net_devices, ",")},
  };
  for (const auto& [name, value] : settings) {
    if (ucs_status_t s = ucp_config_modify(config.get(), name.c_str(), value.c_str());
        s != UCS_OK) {
      return absl::InvalidArgumentError(
          absl::StrCat("UCX refuses ", name, "=\"", value, "\": ", ucs_status_string(s)));
    }
  }
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "baton";
  ucp_context_h context = nullptr;
  if (ucs_status_t s = ucp_init(&params, config.get(), &context); s != UCS_OK) {
    return FromUcs(s, absl::StrCat("UCX finds no transport for tls \"", settings[0].second,
                                   "\" and net_devices \"", settings.back().second, "\""));
  }
  return Context(context);
}

absl::StatusOr<Worker> CreateWorker(ucp_context_h context, size_t min_header_bytes) {
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  params.flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK;  // quarantined requests end with the worker
  ucp_worker_h raw = nullptr;
  if (ucs_status_t s = ucp_worker_create(context, &params, &raw); s != UCS_OK) {
    return FromUcs(s, "UCX can't create a worker");
  }
  Worker worker(raw);
  ucp_worker_attr_t attr = {};
  attr.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
  if (ucs_status_t s = ucp_worker_query(raw, &attr); s != UCS_OK) {
    return FromUcs(s, "ucp_worker_query");
  }
  if (attr.max_am_header < min_header_bytes) {
    return absl::UnavailableError(absl::StrCat("the chosen UCX transports carry headers of ",
                                               attr.max_am_header, " bytes at most; ",
                                               min_header_bytes, " are needed"));
  }
  return worker;
}

absl::StatusOr<std::string> WorkerAddress(ucp_worker_h worker, bool network_only) {
  ucp_worker_attr_t attr = {};
  attr.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS;
  attr.address_flags = network_only ? UCP_WORKER_ADDRESS_FLAG_NET_ONLY : 0;
  if (ucs_status_t s = ucp_worker_query(worker, &attr); s != UCS_OK) {
    return FromUcs(s, "UCX gives no address");
  }
  std::string result(reinterpret_cast<const char*>(attr.address), attr.address_length);
  ucp_worker_release_address(worker, attr.address);
  return result;
}

bool UsesNetwork(std::string_view tls) {
  static constexpr std::string_view kLocal[] = {"posix", "sysv", "xpmem", "cma",  "knem",
                                                "mm",    "sm",   "shm",   "self", "cuda_ipc"};
  return std::find(std::begin(kLocal), std::end(kLocal), tls) == std::end(kLocal);
}

bool MayUseSharedMemory(std::string_view lane) {
  if (lane == kUnknownLane) return true;
  for (std::string_view name : {"posix", "sysv", "xpmem"}) {
    if (lane.find(name) != lane.npos) return true;
  }
  return false;
}

std::string WrapAddress(std::string_view ucx_address) {
  const uint64_t sum = XXH3_64bits(ucx_address.data(), ucx_address.size());
  std::string wrapped(kAddressMark);
  wrapped.append(reinterpret_cast<const char*>(&sum), sizeof(sum));
  wrapped += ucx_address;
  return wrapped;
}

absl::StatusOr<std::string> UnwrapAddress(std::string_view address) {
  uint64_t sum;
  const size_t prefix = kAddressMark.size() + sizeof(sum);
  if (address.size() <= prefix || address.size() > kMaxAddressBytes ||
      !address.starts_with(kAddressMark)) {
    return absl::InvalidArgumentError("not the address of a UCX transport");
  }
  std::memcpy(&sum, address.data() + kAddressMark.size(), sizeof(sum));
  address.remove_prefix(prefix);
  if (XXH3_64bits(address.data(), address.size()) != sum) {
    return absl::InvalidArgumentError("damaged address of a UCX transport");
  }
  return std::string(address);
}

std::string ParseLanes(std::string_view info) {
  // Lines like "lane[0]:  5:posix/memory.0 md[3]  -> md[3]/posix/sysdev[255] am am_bw#0 keepalive".
  std::vector<std::string> lanes;
  while (!info.empty()) {
    const std::string_view line = info.substr(0, info.find('\n'));
    info.remove_prefix(std::min(info.size(), line.size() + 1));
    if (line.find("lane[") == line.npos) continue;
    const size_t name = line.find(':', line.find(':') + 1);
    if (name == line.npos) continue;
    std::string_view lane = line.substr(name + 1);
    lane = lane.substr(0, lane.find_first_of(" \t"));
    lane = lane.substr(0, lane.rfind('.'));  // the index of the resource
    if (lane.ends_with("/memory")) lane.remove_suffix(std::string_view("/memory").size());
    if (lane.empty()) continue;
    if (std::find(lanes.begin(), lanes.end(), lane) == lanes.end()) lanes.emplace_back(lane);
  }
  return lanes.empty() ? std::string(kUnknownLane) : absl::StrJoin(lanes, "+");
}

// Versions differ in what they offer, and only here.
#if UCP_API_VERSION >= UCP_VERSION(1, 14)
std::string LaneOf(ucp_ep_h endpoint) {
  ucp_transport_entry_t entries[8];
  ucp_ep_attr_t attr = {};
  attr.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS;
  attr.transports.entries = entries;
  attr.transports.num_entries = 8;
  attr.transports.entry_size = sizeof(entries[0]);
  if (ucp_ep_query(endpoint, &attr) != UCS_OK) return std::string(kUnknownLane);
  std::vector<std::string> lanes;
  for (unsigned i = 0; i < attr.transports.num_entries && i < 8; ++i) {
    std::string lane = entries[i].transport_name;
    if (std::string_view(entries[i].device_name) != "memory") {
      absl::StrAppend(&lane, "/", entries[i].device_name);
    }
    if (std::find(lanes.begin(), lanes.end(), lane) == lanes.end()) lanes.push_back(lane);
  }
  return lanes.empty() ? std::string(kUnknownLane) : absl::StrJoin(lanes, "+");
}
#else
std::string LaneOf(ucp_ep_h endpoint) {
  char* text = nullptr;
  size_t size = 0;
  FILE* stream = open_memstream(&text, &size);
  if (stream == nullptr) return std::string(kUnknownLane);
  ucp_ep_print_info(endpoint, stream);
  fclose(stream);
  std::string lanes = ParseLanes(std::string_view(text, size));
  free(text);
  return lanes;
}
#endif

}  // namespace baton::ucx
