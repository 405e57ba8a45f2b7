package godwit.peers;

import static org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO;

import java.util.HashMap;
import java.util.Map;
import java.util.zip.CRC32;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** The job: every key counts its rows, beside a value that is written once and only makes its state as large as wanted. */
public final class Counting {
  static final TypeInformation<Tuple2<Long, Long>> ROW = Types.TUPLE(Types.LONG, Types.LONG);
  static final TypeInformation<Tuple4<Long, Long, Long, Long>> OUTPUT =
      Types.TUPLE(Types.LONG, Types.LONG, Types.LONG, Types.LONG);

  private Counting() {}

  /**
   * Arguments: --name value, for each option of the plan and the parallelism; then the directory of the sink's logs or, where
   * rows go from topic to topic, those of {@link KafkaEnds}.
   */
  public static void main(String[] given) throws Exception {
    Map<String, String> options = new HashMap<>();
    for (int at = 0; at < given.length; at += 2) {
      options.put(given[at].substring(2), given[at + 1]);
    }
    Plan plan = new Plan(options);
    StreamExecutionEnvironment flink = StreamExecutionEnvironment.getExecutionEnvironment();
    boolean kafka = options.containsKey("bootstrap");
    Source<Tuple2<Long, Long>, ?, ?> source = kafka ? KafkaEnds.source(options) : new PlanSource(plan);
    Sink<Tuple4<Long, Long, Long, Long>> sink =
        kafka ? KafkaEnds.sink(options) : new LogSink(options.get("logs"), plan.end() - plan.first());
    flink
        .fromSource(source, WatermarkStrategy.noWatermarks(), "rows", ROW)
        .uid("rows")
        .setParallelism(1)
        .keyBy(row -> row.f1, Types.LONG)
        .process(new Count(plan))
        .returns(OUTPUT)
        .uid("count")
        .name("count")
        .setParallelism(Integer.parseInt(options.get("parallelism")))
        .rebalance() // else the sink is chained to a count of parallelism 1 and scaled with it
        .sinkTo(sink)
        .uid("outputs")
        .name("outputs")
        .setParallelism(1);
    flink.execute("counting");
  }

  /** (number, key) in; (number, key, count, digest) out, the digest only where state is looked at. */
  private static final class Count extends KeyedProcessFunction<Long, Tuple2<Long, Long>, Tuple4<Long, Long, Long, Long>> {
    private final Plan plan;
    private transient ValueState<Long> count;
    private transient ValueState<byte[]> ballast;

    Count(Plan plan) {
      this.plan = plan;
    }

    @Override
    public void open(OpenContext context) {
      count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
      ballast = getRuntimeContext().getState(new ValueStateDescriptor<>("ballast", BYTE_PRIMITIVE_ARRAY_TYPE_INFO));
    }

    @Override
    public void processElement(Tuple2<Long, Long> row, Context context, Collector<Tuple4<Long, Long, Long, Long>> out)
        throws Exception {
      long number = row.f0;
      long key = row.f1;
      if (plan.looks(number)) {
        out.collect(Tuple4.of(number, key, count.value(), digest(ballast.value())));
        return;
      }
      long counted = 0;
      if (plan.fills(number)) {
        ballast.update(plan.ballast(key));
      } else {
        counted = count.value() + 1;
      }
      count.update(counted);
      out.collect(Tuple4.of(number, key, counted, 0L));
    }

    private static long digest(byte[] bytes) {
      CRC32 crc = new CRC32();
      crc.update(bytes);
      return crc.getValue();
    }
  }
}
