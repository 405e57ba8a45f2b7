package godwit.peers;

import java.io.IOException;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.UUID;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.api.java.tuple.Tuple4;

/**
 * Every output with the time at which it arrived, in a mapped file for each writer: what was written is there whatever
 * becomes of the job. A file is its count of records, then records of five 64-bit numbers, little-endian:
 * number, key, count, digest, arrival in microseconds.
 */
final class LogSink implements Sink<Tuple4<Long, Long, Long, Long>> {
  private static final int HEADER_BYTES = 8;
  private static final int RECORD_BYTES = 40;

  private final String directory;
  private final long recordsMax; // no writer sees a row twice: after a restart there is a new one

  LogSink(String directory, long recordsMax) {
    this.directory = directory;
    this.recordsMax = recordsMax;
  }

  @Override
  public SinkWriter<Tuple4<Long, Long, Long, Long>> createWriter(WriterInitContext context) throws IOException {
    Path file = Path.of(directory, Plan.nowUs() + "-" + UUID.randomUUID() + ".log");
    try (FileChannel channel =
        FileChannel.open(file, StandardOpenOption.CREATE_NEW, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
      long size = HEADER_BYTES + recordsMax * RECORD_BYTES;
      return new Writer(channel.map(FileChannel.MapMode.READ_WRITE, 0, size));
    }
  }

  private static final class Writer implements SinkWriter<Tuple4<Long, Long, Long, Long>> {
    private final MappedByteBuffer file;
    private long records;

    Writer(MappedByteBuffer file) {
      this.file = file;
      file.order(ByteOrder.LITTLE_ENDIAN).position(HEADER_BYTES);
    }

    @Override
    public void write(Tuple4<Long, Long, Long, Long> output, Context context) {
      file.putLong(output.f0).putLong(output.f1).putLong(output.f2).putLong(output.f3).putLong(Plan.nowUs());
      file.putLong(0, ++records);
    }

    @Override
    public void flush(boolean endOfInput) {}

    @Override
    public void close() {}
  }
}
