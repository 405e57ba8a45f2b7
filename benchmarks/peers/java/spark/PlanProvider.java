package godwit.peers;

import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A streaming source of the rows of a plan as they come due: (key, weight, ballast). A filling row has weight 0 and its key's
 * ballast, so that a sum of weights counts the load alone. An offset is the next number.
 */
public final class PlanProvider implements TableProvider {
  private static final StructType ROW =
      new StructType()
          .add("key", DataTypes.LongType, false)
          .add("weight", DataTypes.LongType, false)
          .add("ballast", DataTypes.BinaryType, true);

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return ROW;
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> options) {
    return new PlanTable(new Plan(new CaseInsensitiveStringMap(options)));
  }

  private record PlanTable(Plan plan) implements Table, SupportsRead {
    @Override
    public String name() {
      return "plan";
    }

    @Override
    public StructType schema() {
      return ROW;
    }

    @Override
    public Set<TableCapability> capabilities() {
      return Set.of(TableCapability.MICRO_BATCH_READ);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return () -> new PlanScan(plan);
    }
  }

  private record PlanScan(Plan plan) implements Scan {
    @Override
    public StructType readSchema() {
      return ROW;
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
      return new Stream(plan);
    }
  }

  private static final class Next extends Offset {
    private final long number;

    Next(long number) {
      this.number = number;
    }

    @Override
    public String json() {
      return Long.toString(number);
    }
  }

  private record Stream(Plan plan) implements MicroBatchStream {
    @Override
    public Offset initialOffset() {
      return new Next(plan.first());
    }

    @Override
    public Offset latestOffset() {
      return new Next(plan.due());
    }

    @Override
    public Offset deserializeOffset(String json) {
      return new Next(Long.parseLong(json.trim()));
    }

    @Override
    public InputPartition[] planInputPartitions(Offset start, Offset end) {
      return new InputPartition[] {new Slice(plan, ((Next) start).number, ((Next) end).number)};
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
      return new Readers();
    }

    @Override
    public void commit(Offset end) {}

    @Override
    public void stop() {}
  }

  private record Slice(Plan plan, long first, long stop) implements InputPartition {}

  private static final class Readers implements PartitionReaderFactory {
    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      return new Reader((Slice) partition);
    }
  }

  private static final class Reader implements PartitionReader<InternalRow> {
    private final Slice slice;
    private long number;

    Reader(Slice slice) {
      this.slice = slice;
      number = slice.first() - 1;
    }

    @Override
    public boolean next() {
      return ++number < slice.stop();
    }

    @Override
    public InternalRow get() {
      Plan plan = slice.plan();
      long key = plan.key(number);
      boolean fills = plan.fills(number);
      return new GenericInternalRow(new Object[] {key, fills ? 0L : 1L, fills ? plan.ballast(key) : null});
    }

    @Override
    public void close() {}
  }
}
