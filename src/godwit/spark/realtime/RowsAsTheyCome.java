package godwit;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskContext$;
import org.apache.spark.api.java.function.MapPartitionsFunction;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.util.AccumulatorV2;
import org.apache.spark.util.TaskCompletionListener;

/**
 * Hands the rows of a partition on as they come, in packets that end when the input pauses.
 *
 * Spark writes rows into an Arrow batch until a number of rows is reached or the iterator says that there are no more. It asks the
 * iterator before it looks at the number, so a row would wait for the row after it. This iterator says "no more" at the end of each
 * packet: Spark sends the batch, asks again, and gets the next packet. A thread of its own reads the input meanwhile.
 *
 * The next packet begins when Python has answered the one before, or when that takes long: so packets are small while the machine
 * keeps up, and become larger, and not more, when it does not. Each packet costs five processes about the same, whatever its size.
 *
 * Compiled by Janino, which Spark brings along: no lambdas, no type parameters.
 */
public final class RowsAsTheyCome implements MapPartitionsFunction {
    private static final long serialVersionUID = 1L;
    static final int WAITING_MAX = 1 << 14; // rows that are read ahead; then the input waits

    private final int rowsMax;
    private final long gapNanos;
    private final long unansweredNanos;
    private final long tickNanos;
    private final int columns;

    /**
     * Five numbers, in text because Python makes this object by reflection: the most rows of a packet; microseconds between two
     * packets, at least, and at most if Python does not answer; milliseconds of silence after which a row of nulls is handed on (0:
     * never); columns of a row.
     */
    public RowsAsTheyCome(String settings) {
        String[] numbers = settings.split(" ");
        this.rowsMax = Integer.parseInt(numbers[0]);
        this.gapNanos = Long.parseLong(numbers[1]) * 1000L;
        this.unansweredNanos = Long.parseLong(numbers[2]) * 1000L;
        this.tickNanos = Long.parseLong(numbers[3]) * 1000000L;
        this.columns = Integer.parseInt(numbers[4]);
    }

    public Iterator call(Iterator rows) {
        Reading reading = new Reading(rows, TaskContext.get());
        reading.start();
        Answers answers = new Answers(TaskContext.get());
        return new Packets(this, reading, answers, RowFactory.create(new Object[columns]));
    }

    /** Reads the input ahead. Its last element is END, or the failure that has ended the input. */
    static final class Reading extends Thread implements TaskCompletionListener {
        static final Object END = new Object();
        static final long JOIN_MILLIS = 10000L;
        final LinkedBlockingQueue waiting = new LinkedBlockingQueue(WAITING_MAX);
        private final Iterator rows;
        private final TaskContext context;

        Reading(Iterator rows, TaskContext context) {
            super("godwit-rows");
            setDaemon(true);
            this.rows = rows;
            this.context = context;
            context.addTaskCompletionListener(this);
        }

        public void run() {
            Object last = END;
            try {
                TaskContext$.MODULE$.setTaskContext(context);
                while (rows.hasNext()) {
                    waiting.put(rows.next());
                }
            } catch (Throwable failure) {
                last = failure;
            }
            try {
                waiting.put(last);
            } catch (InterruptedException stopped) {
                // The task has ended, and nobody reads on.
            }
        }

        /** The task has ended: the input must not be read while Spark closes it. */
        public void onTaskCompletion(TaskContext ended) {
            interrupt();
            try {
                join(JOIN_MILLIS);
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** What Spark counts of the bytes that come back from Python in this task: every answer has some, also one without rows. */
    static final class Answers {
        private static final String BYTES = "data returned from Python workers";
        private final ArrayList counters = new ArrayList();

        Answers(TaskContext context) {
            scala.collection.Iterator all = context.taskMetrics().accumulators().iterator();
            while (all.hasNext()) {
                AccumulatorV2 counter = (AccumulatorV2) all.next();
                if (counter.name().isDefined() && BYTES.equals(counter.name().get())) {
                    counters.add(counter);
                }
            }
        }

        /** A number that grows with each answer; always 0 where Spark does not count. */
        long received() {
            long bytes = 0L;
            for (int at = 0; at < counters.size(); at++) {
                bytes += ((Number) ((AccumulatorV2) counters.get(at)).value()).longValue();
            }
            return bytes;
        }

        boolean known() {
            return !counters.isEmpty();
        }
    }

    static final class Packets implements Iterator {
        private static final long LOOK_NANOS = 200000L;
        private final Reading reading;
        private final Answers answers;
        private final int rowsMax;
        private final long gapNanos;
        private final long unansweredNanos;
        private final long tickNanos;
        private final Row tick;
        private long received; // when the packet before was begun
        private Object next;
        private int given; // rows of the packet so far
        private boolean ended;
        private long closedNanos = System.nanoTime();

        Packets(RowsAsTheyCome settings, Reading reading, Answers answers, Row tick) {
            this.reading = reading;
            this.answers = answers;
            this.rowsMax = settings.rowsMax;
            this.gapNanos = settings.gapNanos;
            this.unansweredNanos = answers.known() ? settings.unansweredNanos : settings.gapNanos;
            this.tickNanos = settings.tickNanos;
            this.tick = tick;
            this.received = -1L; // nothing to wait for yet
        }

        public boolean hasNext() {
            if (next == null && given > 0) {
                if (given < rowsMax) {
                    next = taken(reading.waiting.poll());
                }
                if (next == null) {
                    given = 0;
                    closedNanos = System.nanoTime();
                    return false; // the packet ends here
                }
            }
            if (next == null && !ended) {
                next = awaited();
                if (next != null && next != tick) {
                    waitForTurn();
                }
            }
            return next != null;
        }

        public Object next() {
            Object row = next;
            next = null;
            given++;
            return row;
        }

        /** Until the packet before is answered, and some time in any case. Rows that come meanwhile go along. */
        private void waitForTurn() {
            long passed = System.nanoTime() - closedNanos;
            while (passed < (answers.received() == received ? unansweredNanos : gapNanos)) {
                if (Thread.currentThread().isInterrupted()) {
                    return;
                }
                LockSupport.parkNanos(passed < gapNanos ? gapNanos - passed : LOOK_NANOS);
                passed = System.nanoTime() - closedNanos;
            }
            received = answers.received();
        }

        /** The first row of a packet; a tick if the input is silent for long; null at its end. */
        private Object awaited() {
            try {
                if (tickNanos == 0L) {
                    return taken(reading.waiting.take());
                }
                Object row = reading.waiting.poll(tickNanos, TimeUnit.NANOSECONDS);
                return row == null ? tick : taken(row);
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
                ended = true;
                return null;
            }
        }

        private Object taken(Object read) {
            if (read == Reading.END) {
                ended = true;
                return null;
            }
            if (read instanceof Error) {
                throw (Error) read;
            }
            if (read instanceof RuntimeException) {
                throw (RuntimeException) read;
            }
            if (read instanceof Throwable) {
                throw new RuntimeException((Throwable) read);
            }
            return read;
        }
    }
}
