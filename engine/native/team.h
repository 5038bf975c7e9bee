// Threads that share a step's work by claiming pieces of it.
//
// A step is a row of phases, each a number of pieces that may run in any order. Whoever is free claims the next piece,
// and the phase is over when all pieces are done. So nobody waits for a thread, only for claimed work: a thread that
// the system took off its core, or that wakes late, costs at most the piece it holds. (With a barrier per phase every
// thread waits for the slowest one some 200 times a step, which is 10 times slower beside any other busy process.)
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace rumormill {

constexpr int SPINS = 10000;       // looks at a phase's count, some 0.2 ms, before the core is given away
constexpr int ROW_PIECES = 32;     // pieces that rows are cut into at most

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

struct alignas(64) Phase {
    std::atomic<int> next{0}, done{0};
};

class Share {  // one thread's part in a step: it meets the same phases as all others, in the same order
public:
    explicit Share(Phase* first) : phase_(first) {}

    template <class Work> void each(int pieces, Work work) {
        Phase& phase = *phase_++;
        for (int piece; (piece = phase.next.fetch_add(1, std::memory_order_relaxed)) < pieces;) {
            work(piece);
            phase.done.fetch_add(1, std::memory_order_release);
        }
        for (int looks = 0; phase.done.load(std::memory_order_acquire) < pieces; looks++) {
            if (looks < SPINS) pause();
            else std::this_thread::yield();
        }
    }

    template <class Work> void rows(int count, Work work) {
        int pieces = std::min(count, ROW_PIECES);
        each(pieces, [&](int piece) {
            int end = int64_t(count) * (piece + 1) / pieces;
            for (int row = int64_t(count) * piece / pieces; row < end; row++) work(row);
        });
    }

private:
    Phase* phase_;
};

// A team's helpers may still be passing finished phases after `run` returned, but claim nothing there: what `body`
// captures by value, and what it reads between pieces, must live until `rest` returned.
class Team {
public:
    static Team& instance() {
        static Team* team = new Team;  // never destroyed: its helpers run until the process ends
        return *team;
    }

    void run(int threads, int phases, std::function<void(Share&)> body) {
        std::lock_guard<std::mutex> one_at_a_time(running_);
        auto job = std::make_shared<Job>(threads - 1, phases, std::move(body));
        {
            std::lock_guard<std::mutex> guard(lock_);
            for (; helpers_ < threads - 1; helpers_++) std::thread(&Team::help, this, helpers_).detach();
            job_ = job;
            number_++;
        }
        if (threads > 1) wake_.notify_all();
        Share share(job->phases.data());
        job->body(share);
        std::lock_guard<std::mutex> guard(lock_);
        job_.reset();
    }

    void rest() {
        std::unique_lock<std::mutex> guard(lock_);
        idle_.wait(guard, [&] { return !active_; });
    }

private:
    struct Job {
        Job(int helpers, int phases, std::function<void(Share&)> body)
            : helpers(helpers), phases(phases), body(std::move(body)) {}
        int helpers;
        std::vector<Phase> phases;
        std::function<void(Share&)> body;
    };

    void help(int index) {
        std::unique_lock<std::mutex> guard(lock_);
        for (int64_t seen = 0;;) {
            wake_.wait(guard, [&] { return number_ != seen && job_; });
            seen = number_;
            auto job = job_;
            if (index >= job->helpers) continue;
            active_++;
            guard.unlock();
            Share share(job->phases.data());
            job->body(share);
            job.reset();
            guard.lock();
            if (!--active_) idle_.notify_all();
        }
    }

    std::mutex running_, lock_;
    std::condition_variable wake_, idle_;
    std::shared_ptr<Job> job_;
    int64_t number_ = 0;
    int helpers_ = 0, active_ = 0;
};

}  // namespace rumormill
