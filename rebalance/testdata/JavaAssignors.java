// Prints what the Java client's range and round robin assignors do with random groups, for java_assignors.txt:
//   javac -cp 'libs/*' JavaAssignors.java && java -cp '.:libs/*' JavaAssignors range 1 250
import java.util.*;
import java.util.stream.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.*;
import org.apache.kafka.clients.consumer.internals.AbstractPartitionAssignor;
import org.apache.kafka.common.*;

public class JavaAssignors {
  public static void main(String[] args) {
    Random random = new Random(Long.parseLong(args[1]));
    for (int i = 0; i < Integer.parseInt(args[2]); i++) one(args[0], random);
  }

  static void one(String kind, Random random) {
    boolean racked = kind.equals("range") && random.nextInt(5) > 0;
    int racks = 1 + random.nextInt(4);
    List<Node> nodes = new ArrayList<>(); // the first has no rack
    for (int i = 0; i <= racks; i++) nodes.add(new Node(i, "host", 1, i == 0 ? null : "r" + i));
    int topicCount = 1 + random.nextInt(4), same = 1 + random.nextInt(9);
    boolean alike = random.nextBoolean();
    List<PartitionInfo> infos = new ArrayList<>();
    List<String> topics = new ArrayList<>();
    for (int t = 0; t < topicCount; t++) {
      int partitions = alike ? same : 1 + random.nextInt(9);
      List<String> racksOf = new ArrayList<>();
      for (int p = 0; p < partitions; p++) {
        Set<Node> replicas = new LinkedHashSet<>();
        for (int k = 1 + random.nextInt(2); k > 0; k--)
          replicas.add(nodes.get(!racked || random.nextInt(8) == 0 ? 0 : 1 + random.nextInt(racks)));
        Node[] array = replicas.toArray(new Node[0]);
        infos.add(new PartitionInfo("t" + t, p, array[0], array, array));
        String text = replicas.stream().map(Node::rack).filter(Objects::nonNull).collect(Collectors.joining("+"));
        racksOf.add(text.isEmpty() ? "-" : text);
      }
      topics.add("t" + t + "=" + String.join(",", racksOf));
    }
    Map<String, Subscription> subscriptions = new HashMap<>();
    List<String> members = new ArrayList<>();
    boolean all = random.nextBoolean();
    for (int m = 1 + random.nextInt(6); m > 0; m--) {
      List<String> asked = new ArrayList<>();
      for (int t = 0; t < topicCount; t++) if (all || random.nextBoolean()) asked.add("t" + t);
      if (random.nextInt(10) == 0) asked.add("missing");
      if (asked.isEmpty()) asked.add("t0");
      String rack = racked && random.nextInt(6) > 0 ? "r" + (1 + random.nextInt(racks + (random.nextInt(5) == 0 ? 1 : 0))) : "";
      String id = "m" + random.nextInt(1000) + "-" + m;
      String instance = random.nextInt(4) == 0 ? "i" + random.nextInt(100) + "-" + m : "";
      Subscription subscription =
          new Subscription(asked, null, List.of(), -1, rack.isEmpty() ? Optional.empty() : Optional.of(rack));
      if (!instance.isEmpty()) subscription.setGroupInstanceId(Optional.of(instance));
      subscriptions.put(id, subscription);
      members.add(id + "/" + instance + "/" + rack + "/" + String.join("+", asked));
    }
    AbstractPartitionAssignor assignor = kind.equals("range") ? new RangeAssignor() : new RoundRobinAssignor();
    Cluster cluster = new Cluster("c", nodes, infos, Set.of(), Set.of());
    Map<String, Assignment> result =
        new TreeMap<>(assignor.assign(cluster, new GroupSubscription(subscriptions)).groupAssignment());
    System.out.println(kind + ";" + String.join(" ", members) + ";" + String.join(" ", topics) + ";"
        + result.entrySet().stream().map(e -> e.getKey() + "=" + e.getValue().partitions().stream()
            .map(p -> p.topic() + ":" + p.partition()).collect(Collectors.joining("+"))).collect(Collectors.joining(" ")));
  }
}
