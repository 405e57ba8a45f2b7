package godwit.peers;

import java.nio.ByteBuffer;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SourceSplit;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.core.io.InputStatus;
import org.apache.flink.core.io.SimpleVersionedSerializer;

/** (number, key) of every row of the plan as it comes due, from one reader; the next number is in the checkpoint. */
final class PlanSource implements Source<Tuple2<Long, Long>, PlanSource.Split, Boolean> {
  private final Plan plan;

  PlanSource(Plan plan) {
    this.plan = plan;
  }

  /** All there is to read, from a number on. */
  record Split(long next) implements SourceSplit {
    @Override
    public String splitId() {
      return "plan";
    }
  }

  @Override
  public Boundedness getBoundedness() {
    return Boundedness.CONTINUOUS_UNBOUNDED;
  }

  @Override
  public SplitEnumerator<Split, Boolean> createEnumerator(SplitEnumeratorContext<Split> context) {
    return new Enumerator(context, new Split(plan.first()));
  }

  @Override
  public SplitEnumerator<Split, Boolean> restoreEnumerator(SplitEnumeratorContext<Split> context, Boolean given) {
    return new Enumerator(context, given ? null : new Split(plan.first()));
  }

  @Override
  public SourceReader<Tuple2<Long, Long>, Split> createReader(SourceReaderContext context) {
    return new Reader(plan);
  }

  @Override
  public SimpleVersionedSerializer<Split> getSplitSerializer() {
    return new Numbers<>() {
      @Override
      long number(Split split) {
        return split.next();
      }

      @Override
      Split of(long number) {
        return new Split(number);
      }
    };
  }

  @Override
  public SimpleVersionedSerializer<Boolean> getEnumeratorCheckpointSerializer() {
    return new Numbers<>() {
      @Override
      long number(Boolean given) {
        return given ? 1 : 0;
      }

      @Override
      Boolean of(long number) {
        return number == 1;
      }
    };
  }

  /** Eight bytes for whatever is one number. */
  private abstract static class Numbers<T> implements SimpleVersionedSerializer<T> {
    abstract long number(T value);

    abstract T of(long number);

    @Override
    public int getVersion() {
      return 1;
    }

    @Override
    public byte[] serialize(T value) {
      return ByteBuffer.allocate(Long.BYTES).putLong(number(value)).array();
    }

    @Override
    public T deserialize(int version, byte[] bytes) {
      return of(ByteBuffer.wrap(bytes).getLong());
    }
  }

  /** Gives the one split to the one reader; after a restore the reader has it from its own state. */
  private static final class Enumerator implements SplitEnumerator<Split, Boolean> {
    private final SplitEnumeratorContext<Split> context;
    private Split split; // null: given

    Enumerator(SplitEnumeratorContext<Split> context, Split split) {
      this.context = context;
      this.split = split;
    }

    @Override
    public void addReader(int reader) {
      if (split != null) {
        context.assignSplit(split, reader);
        split = null;
      }
    }

    @Override
    public void addSplitsBack(List<Split> splits, int reader) {
      splits.forEach(back -> split = back);
    }

    @Override
    public Boolean snapshotState(long checkpoint) {
      return split == null;
    }

    @Override
    public void start() {}

    @Override
    public void handleSplitRequest(int reader, String host) {}

    @Override
    public void close() {}
  }

  private static final class Reader implements SourceReader<Tuple2<Long, Long>, Split> {
    private static final int BURST = 64; // rows at a time, so that checkpoint barriers need not wait long
    private static final int TICK_MS = 1;

    private final Plan plan;
    private final ScheduledExecutorService clock = Executors.newSingleThreadScheduledExecutor();
    private CompletableFuture<Void> available = new CompletableFuture<>();
    private long next;
    private boolean reading;

    Reader(Plan plan) {
      this.plan = plan;
    }

    @Override
    public InputStatus pollNext(ReaderOutput<Tuple2<Long, Long>> output) {
      if (!reading) {
        return InputStatus.NOTHING_AVAILABLE;
      }
      long due = plan.due();
      for (int left = BURST; left > 0 && next < due; left--) {
        output.collect(Tuple2.of(next, plan.key(next)));
        next++;
      }
      if (next == plan.end()) {
        return InputStatus.END_OF_INPUT;
      }
      if (next < due) {
        return InputStatus.MORE_AVAILABLE;
      }
      CompletableFuture<Void> tick = new CompletableFuture<>();
      available = tick;
      clock.schedule(() -> tick.complete(null), TICK_MS, TimeUnit.MILLISECONDS);
      return InputStatus.NOTHING_AVAILABLE;
    }

    @Override
    public void addSplits(List<Split> splits) {
      next = splits.get(0).next();
      reading = true;
      available.complete(null);
    }

    @Override
    public List<Split> snapshotState(long checkpoint) {
      return reading ? List.of(new Split(next)) : List.of();
    }

    @Override
    public CompletableFuture<Void> isAvailable() {
      return available;
    }

    @Override
    public void start() {}

    @Override
    public void notifyNoMoreSplits() {}

    @Override
    public void close() {
      clock.shutdownNow();
    }
  }
}
