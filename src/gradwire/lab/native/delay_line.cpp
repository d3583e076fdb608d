// Holds every packet between pairs of TAP devices for a fixed time.
//
//   gradwire_delay_line HELD_NS HUB_NAMESPACE RANK_NAMESPACE...
//
// Namespaces are file descriptors. For rank i it makes the TAP devices `eth0` in
// the rank's namespace and `port<i>` in the hub's, writes "ready" once all are
// there, and passes packets on until it is killed. Offloads keep packets of up to
// 64 KiB whole, so that the cost is per packet, not per frame.
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr size_t kMostPacketBytes = 66 << 10;  // 64 KiB and the headers before it
constexpr size_t kMostHeldBytes = 128 << 20;   // each way: 100 ms of 10 Gbit/s
constexpr int kPacketsATurn = 64;              // then the other directions are looked at
constexpr unsigned kUdpOffload = 0x60;         // TUN_F_USO4 and 6, since Linux 6.2
constexpr int64_t kNever = INT64_MAX;

int64_t now_ns() {
  using std::chrono::steady_clock;
  return std::chrono::nanoseconds(steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "%s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

int open_tap(int network, const std::string& name) {
  if (setns(network, CLONE_NEWNET) != 0) fail("setns");
  const int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (tap < 0) fail("/dev/net/tun");
  ifreq request{};
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  if (ioctl(tap, TUNSETIFF, &request) != 0) fail(name.c_str());
  constexpr unsigned tcp = TUN_F_CSUM | TUN_F_TSO4;
  if (ioctl(tap, TUNSETOFFLOAD, tcp | kUdpOffload) == 0) return tap;
  if (ioctl(tap, TUNSETOFFLOAD, tcp) != 0) fail("TUNSETOFFLOAD");
  return tap;
}

struct Packet {
  int64_t due_ns;
  size_t size;
  std::unique_ptr<char[]> bytes;
};

// One way between the two TAP devices of a rank.
class Direction {
 public:
  Direction(int source, int sink) : source_(source), sink_(sink) {}

  int source() const { return source_; }

  // Takes in what waits at the source; beyond what may be held it is dropped.
  void take(int64_t due_ns, std::vector<char>& buffer) {
    for (int i = 0; i < kPacketsATurn; ++i) {
      const ssize_t size = read(source_, buffer.data(), buffer.size());
      if (size <= 0) return;
      const auto bytes = static_cast<size_t>(size);
      if (held_bytes_ + bytes > kMostHeldBytes) continue;
      Packet packet{due_ns, bytes, std::unique_ptr<char[]>(new char[bytes])};
      std::memcpy(packet.bytes.get(), buffer.data(), bytes);
      held_.push_back(std::move(packet));
      held_bytes_ += bytes;
    }
  }

  // Passes on what is due and returns when the next packet will be. A sink that
  // is down or full loses it, as a line does.
  int64_t pass(int64_t until_ns) {
    while (!held_.empty() && held_.front().due_ns <= until_ns) {
      const Packet& packet = held_.front();
      if (write(sink_, packet.bytes.get(), packet.size) < 0 && errno == EBADFD) fail("write");
      held_bytes_ -= packet.size;
      held_.pop_front();
    }
    return held_.empty() ? kNever : held_.front().due_ns;
  }

 private:
  int source_, sink_;
  size_t held_bytes_ = 0;
  std::deque<Packet> held_;
};

std::deque<Direction> connect(int hub, const std::vector<int>& ranks) {
  std::deque<Direction> directions;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int near = open_tap(ranks[i], "eth0");
    const int far = open_tap(hub, "port" + std::to_string(i));
    directions.emplace_back(near, far);
    directions.emplace_back(far, near);
  }
  return directions;
}

[[noreturn]] void serve(std::deque<Direction>& directions, int64_t held_ns) {
  std::vector<pollfd> waiting;
  for (const Direction& d : directions) waiting.push_back({d.source(), POLLIN, 0});
  std::vector<char> buffer(kMostPacketBytes);
  for (;;) {
    int64_t next_ns = kNever;
    for (Direction& d : directions) next_ns = std::min(next_ns, d.pass(now_ns()));
    const int64_t left_ns = std::max<int64_t>(0, next_ns - now_ns());
    const timespec left{left_ns / 1'000'000'000, left_ns % 1'000'000'000};
    const timespec* limit = next_ns == kNever ? nullptr : &left;
    if (ppoll(waiting.data(), waiting.size(), limit, nullptr) < 0) fail("ppoll");
    const int64_t due_ns = now_ns() + held_ns;
    for (size_t i = 0; i < directions.size(); ++i) {
      if (waiting[i].revents & ~POLLIN) fail("a TAP device is gone");
      if (waiting[i].revents) directions[i].take(due_ns, buffer);
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) {
    std::fputs("usage: gradwire_delay_line HELD_NS HUB_NAMESPACE RANK_NAMESPACE...\n", stderr);
    return 2;
  }
  prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; the default would add 50 us
  std::vector<int> ranks;
  for (int i = 3; i < count; ++i) ranks.push_back(std::atoi(arguments[i]));
  std::deque<Direction> directions = connect(std::atoi(arguments[2]), ranks);
  std::puts("ready");
  std::fflush(stdout);
  serve(directions, std::atoll(arguments[1]));
}
